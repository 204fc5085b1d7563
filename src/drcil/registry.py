"""A table of named things filled by a decorator, so that a new file is all it takes to add one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from .errors import unknown

T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Mapping[str, T]):
    """``registry["name"]`` with an error that proposes the nearest name; ``@registry.register("name")`` fills it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        def keep(entry: Entry) -> Entry:
            if name in self._entries:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = entry  # type: ignore[assignment]
            return entry

        return keep

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
