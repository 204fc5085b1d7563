"""Methods: one file each. Importing this package fills the table."""

from importlib import import_module
from pkgutil import iter_modules

from .base import Architecture, Method, MethodState
from .settings import Settings
from .spec import METHODS, MethodSpec

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Architecture", "Method", "MethodSpec", "MethodState", "Settings"]
