"""Where the runs of a suite are carried out: an engine per file, registered by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...registry import Registry


class Worker(Protocol):
    """Something that carries out one run, such as a process; it may fail without harm to others."""

    def running(self) -> bool: ...

    def failure(self) -> str | None:
        """Why it did not do what it was told to, in a sentence; None if it did. Waits for the end."""

    def ask_to_stop(self) -> None: ...

    def close(self) -> None:
        """Wait for the end, and see to it that there is one."""


class Engine(Protocol):
    """Who starts workers."""

    def start(self, directory: Path, log: Path) -> Worker:
        """Someone who goes on with the run in a directory, which is begun; what is printed is added to the log."""

    def close(self) -> None:
        """Give back all that was taken to work with; no worker is left."""


ENGINES: Registry[Callable[[], Engine]] = Registry("engine", "drcil.suites.engines")
