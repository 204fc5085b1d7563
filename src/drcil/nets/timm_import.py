"""timm, also where torchvision is missing or does not work.

timm imports torchvision for reading and transforming images, which drcil does by itself; no model needs it. But
torchvision works only beside the build of torch that it was compiled for, and beside others it fails when it is
imported. Then timm is given stand-ins: empty classes under the names that it imports. They are there only
while timm is imported, so that nobody else takes them for torchvision.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import UserError

TIMM = "timm:"
"""What the names of timm's models begin with here."""
_ABSENT = "torchvision"
INSTALL = "pip install 'drcil[timm]'"
_importing = threading.Lock()


@cache
def import_timm() -> Any:
    """The package timm; an error with the command that installs it, if it is not there."""
    if importlib.util.find_spec("timm") is None:
        raise UserError(f"backbones 'timm:NAME' need timm, which is not installed; install it with {INSTALL}")
    with _importing, _stand_ins():
        try:
            return importlib.import_module("timm")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"timm cannot be imported: {why}; install it with {INSTALL}") from error


class _Members(type):
    """Classes that have any public attribute, as constants of an enumeration."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _StandIn(ModuleType):
    """A module with any class that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if not name[:1].isupper():
            raise AttributeError(name)
        made = _Members(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds a stand-in for torchvision and for every module of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mine = fullname.partition(".")[0] == _ABSENT
        return ModuleSpec(fullname, self, is_package=True) if mine else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Within the block torchvision can be imported, in earnest or not."""
    if _works():
        yield
        return
    _forget()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _works() -> bool:
    try:
        importlib.import_module(_ABSENT)
    except Exception:  # A build for another torch can fail in any way.
        return False
    return True


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == _ABSENT]:
        del sys.modules[name]
