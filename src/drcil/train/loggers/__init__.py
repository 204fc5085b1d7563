"""Loggers: they write down what a run tells, for other programs to show. A run is given them by name.

The event log, which every run writes, is none of them; it is where they hear of what earlier processes did.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from ...arguments import path, string
from ...disk import make_directory
from ...errors import UserError
from ...registry import Registry
from ..events import Event, Record


class Logger(Protocol):
    def __call__(self, records: Sequence[Record]) -> None:
        """Write down what happened.

        The first call has all of the run that counts so far, every epoch once and in order, also what earlier processes
        did. So a logger begins its files anew, and a resumed run ends with the same as one that was never stopped.
        """


LOGGERS: Registry[Callable[[Path], Logger]] = Registry("logger", "drcil.train.loggers")
"""Each makes a logger for the run in a directory. One that has a method ``close`` is closed when the run stops; one
that has ``needs`` takes a package of this name, which an extra of the same name brings."""


def known_loggers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; or the error that one of them is not known, or not installed."""
    for name in (once := dict.fromkeys(names)):
        package = getattr(LOGGERS[name], "needs", None)
        if package is not None and not _installed(package):
            raise UserError(
                f"the logger '{name}' needs {package}, which is not installed; install it with "
                f"pip install 'drcil[{package}]'"
            )
    return tuple(once)


def _installed(package: str) -> bool:
    """A directory of the same name, which loggers make in the current one, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


class Logging:
    """A listener that passes on to loggers what is worth keeping.

    What goes wrong with one of them is told once and ends neither the training nor the others.
    """

    def __init__(
        self,
        names: Iterable[str],
        directory: Path,
        past: Callable[[], Sequence[Record]] = lambda: (),
        told: Callable[[str], None] = warnings.warn,
    ) -> None:
        """``past``: what happened before the first event that is heard here, asked for when that has come."""
        self._loggers: dict[str, Logger | None] = dict.fromkeys(known_loggers(names))
        self._directory, self._past, self._told = directory, past, told

    def __call__(self, event: Event) -> None:
        if isinstance(event, Record):
            for name in list(self._loggers):
                with self._guarded(name):
                    self._tell(name, event)

    def close(self) -> None:
        for name, logger in list(self._loggers.items()):
            if logger is not None and hasattr(logger, "close"):
                with self._guarded(name):
                    logger.close()

    def _tell(self, name: str, record: Record) -> None:
        logger = self._loggers[name]
        if logger is not None:
            logger([record])
            return
        make_directory(self._directory)
        logger = self._loggers[name] = LOGGERS[name](self._directory)
        logger([*self._past(), record])

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._loggers[name]
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self._told(f"the logger '{name}' failed and logs no more of this run: {' '.join(why.split())}")


def make_logger(name: str, directory: str | Path) -> Logging:
    """A listener for a learner: ``csv``, ``tensorboard``, ``wandb`` or one of a plugin, which writes in a directory."""
    names = known_loggers([string("the name of a logger", name)])
    return Logging(names, path("directory", directory))
