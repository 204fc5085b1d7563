"""Methods: one file each."""

from .base import Architecture, Method, MethodState
from .objectives import cross_entropy
from .settings import Settings
from .spec import METHODS, MethodSpec, method

__all__ = ["METHODS", "Architecture", "Method", "MethodSpec", "MethodState", "Settings", "cross_entropy", "method"]
