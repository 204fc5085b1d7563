"""Methods: one file each."""

from ..objectives import cross_entropy
from .catalog import METHODS, MethodSpec, method
from .method import Architecture, Method, MethodState, Settings

__all__ = ["METHODS", "Architecture", "Method", "MethodSpec", "MethodState", "Settings", "cross_entropy", "method"]
