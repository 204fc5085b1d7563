"""Where the runs of a suite are carried out: an engine per file, registered by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...registry import Registry


@dataclass(frozen=True)
class Request:
    """What is asked of an engine; None: not said."""

    jobs: int | None = None
    """Runs at a time."""
    cpus: float | None = None
    """For each run, and so are ``gpus``."""
    gpus: float | None = None
    address: str | None = None
    device: str | None = None
    """On which the runs are to train."""


class Worker(Protocol):
    """Something that carries out one run, such as a process; it may fail without harm to others."""

    def running(self) -> bool: ...

    def failure(self) -> str | None:
        """Why it did not do what it was told to, in a sentence; None if it did. Waits for the end."""

    def ask_to_stop(self) -> None: ...

    def close(self) -> None:
        """Wait for the end, and see to it that there is one."""


class Engine(Protocol):
    """Who starts workers. To make one takes no time; it refuses what it cannot be asked for."""

    @property
    def threads(self) -> int | None:
        """CPU threads of a run, unless it is said how many; None: as many as there are."""

    def open(self, places: Sequence[Path]) -> int:
        """Get ready for workers that write below these places, which may be missing; how many there are at a time."""

    def start(self, directory: Path, log: Path) -> Worker:
        """Someone who goes on with the run in a directory, which is begun; what is printed is added to the log."""

    def close(self) -> None:
        """Give back all that was taken to work with; no worker is left."""


ENGINES: Registry[Callable[[Request], Engine]] = Registry("engine", "drcil.suites.engines")
