"""What is done on a node of a cluster: carrying out a run, and looking whether that is possible there.

Nothing heavy is imported: the run has a process of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__
from .children import Child

_GLANCE = 0.2
"""Seconds between two looks at the process. A wait without end could not be cancelled."""
_LATENESS = 10.0
"""Seconds after which a file that was written elsewhere is to be seen on a shared disk."""


@dataclass(frozen=True)
class Errand:
    """A run to be carried out, and what its process has to know."""

    directory: str
    log: str
    place: str
    """The working directory."""
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Ending:
    """How the process of a run has ended."""

    failure: str | None
    killed: bool
    """Whether someone killed it, so that it is worth another try."""


def carry_out(errand: Errand) -> Ending:
    """Go on with a run in a process, which is stopped when this one is interrupted, and ends with it at the latest."""
    child = Child(["resume", errand.directory], Path(errand.log), errand.environment, Path(errand.place))
    try:
        while child.running():
            time.sleep(_GLANCE)
        return Ending(child.failure(), child.killed())
    finally:
        child.ask_to_stop()
        child.close()


def versions() -> str:
    """What runs are made with. Another version may give other results."""
    try:
        return f"drcil {__version__} with torch {version('torch').partition('+')[0]}"
    except PackageNotFoundError:
        return f"drcil {__version__} without torch"


def hindrance(marks: Mapping[str, str], place: str, expected: str) -> str | None:
    """Why runs cannot be carried out here, as the rest of a sentence about this node; None if they can.

    ``marks`` are files that were just written, with their content, in directories that this node has to see.
    """
    if versions() != expected:
        return f"has {versions()}, not {expected} as here"
    if not os.path.isdir(place):
        return f"does not see {place}, where this command was given"
    late = time.monotonic() + _LATENESS
    for file, content in marks.items():
        while not _reads(file, content):
            if time.monotonic() > late:
                return f"does not see {os.path.dirname(file)}; --out takes a directory on a disk that all nodes share"
            time.sleep(_GLANCE)
        try:
            tempfile.TemporaryFile(dir=os.path.dirname(file)).close()
        except OSError as error:
            return f"cannot write in {os.path.dirname(file)}: {error.strerror or error}"
    return None


def _reads(file: str, content: str) -> bool:
    try:
        return Path(file).read_text() == content
    except (OSError, UnicodeError):
        return False
