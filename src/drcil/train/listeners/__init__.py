"""Listeners that a run can be given by name. The event log, which every run writes, is none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...registry import Registry
from ..events import Event, Listener

LISTENERS: Registry[Callable[[Path], Listener]] = Registry("listener", "drcil.train.listeners")
"""Each makes a listener for the run in a directory. One that has a method ``close`` is closed when the run stops."""


def known_listeners(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; or the error that one of them is not known."""
    for name in (once := dict.fromkeys(names)):
        LISTENERS[name]
    return tuple(once)


@contextmanager
def listening(names: Iterable[str], directory: Path, first: Listener) -> Iterator[Listener]:
    """One listener that passes everything on to ``first`` and to those of these names."""
    with ExitStack() as stack:
        all_of_them = [first]
        for name in names:
            listener = LISTENERS[name](directory)
            all_of_them.append(listener)
            if hasattr(listener, "close"):
                stack.callback(listener.close)

        def tell(event: Event) -> None:
            for listener in all_of_them:
                listener(event)

        yield tell
