"""Methods: one file each."""

from .base import Architecture, Method, MethodState
from .settings import Settings
from .spec import METHODS, MethodSpec

__all__ = ["METHODS", "Architecture", "Method", "MethodSpec", "MethodState", "Settings"]
