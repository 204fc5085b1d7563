"""A table of named things filled by a decorator, so that a new file is all it takes to add one."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TypeVar

from .errors import UserError, unknown
from .plugins import PACKAGE, SESSION, filling, importing, load_plugins

T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Mapping[str, T]):
    """``registry["name"]`` with an error that proposes the nearest name; ``@registry.register("name")`` fills it.

    The first look-up imports every module of the packages ``home``, then the plugins. Registering imports nothing.
    """

    def __init__(self, kind: str, *home: str) -> None:
        self.kind = kind
        self._home = list(home)
        """Packages that are still to be imported."""
        self._entries: dict[str, T] = {}
        self._origins: dict[str, str | None] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        origin = _origin(sys._getframe(1))

        def keep(entry: Entry) -> Entry:
            if name in self._entries:
                raise self._taken(name, origin)
            self._entries[name] = entry  # type: ignore[assignment]
            self._origins[name] = origin
            if origin is not None and (plugin := importing.get()):
                plugin.undo.append(lambda: self._forget(name))
            return entry

        return keep

    def origin(self, name: str) -> str | None:
        """Where an entry comes from: None for drcil itself, else the name of a plugin or a module, or ``SESSION``."""
        self[name]
        return self._origins.get(name)

    def __getitem__(self, name: str) -> T:
        self._fill()
        try:
            return self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(self._entries)

    def __len__(self) -> int:
        self._fill()
        return len(self._entries)

    def _fill(self) -> None:
        with filling:
            # Emptied first: a module that looks something up while it is imported sees what is there.
            home, self._home = self._home, []
            try:
                for package in home:
                    _import_all(package)
            except BaseException:
                self._home = home
                raise
            load_plugins()

    def _forget(self, name: str) -> None:
        del self._entries[name], self._origins[name]

    def _taken(self, name: str, origin: str | None) -> Exception:
        both = self._origins.get(name), origin
        if both == (None, None):
            return ValueError(f"{self.kind} '{name}' is registered twice")
        first, second = (PACKAGE if one is None else f"'{one}'" for one in both)
        return UserError(f"{self.kind} '{name}' is registered twice, by {first} and by {second}; rename one of them")


def _import_all(package: str) -> None:
    """Import a package with every module right below it."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


def _origin(frame: FrameType | None) -> str | None:
    """Whose code registers something, told by the frames above the registry's own.

    drcil's modules may be imported by a plugin or a script first; what they register is drcil's all the same.
    """
    module = SESSION
    while frame is not None:
        module = frame.f_globals.get("__name__", SESSION)
        own = module.partition(".")[0] == PACKAGE
        if own and frame.f_code.co_name == "<module>":
            return None
        if not own:
            break
        frame = frame.f_back
    plugin = importing.get()
    return plugin.name if plugin else SESSION if module == "__main__" else module
