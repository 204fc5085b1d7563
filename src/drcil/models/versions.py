"""A model that changes: a directory with its latest versions, each a model, and one line that says which is current.

A change is a new version beside the others. It becomes the current one all at once, so that at every moment the
directory is either the old model or the new one. Versions share the files that they have in common.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..data.sources.filelist import directory_names
from ..disk import (
    leftovers,
    locked,
    make_directory,
    remove,
    remove_directory,
    sync_directory,
    temporary_name,
    write_directory,
    write_sealed,
)
from ..errors import UserError
from ..reading import is_file, read_sealed

CURRENT, VERSIONS, LOCK = "current.json", "versions", ".lock"
KEPT = 5
"""Versions that are kept, the current one among them."""
_NUMBER = re.compile("[0-9]{4,9}")
_TRIES = 5
"""How often a version is read that another process replaces at the same time."""

T = TypeVar("T")


def is_versioned(path: Path) -> bool:
    """Whether it is the directory of a model that changes."""
    return is_file(path / CURRENT)


def require_kept(path: Path) -> None:
    """The directory must be one that 'drcil learn' made."""
    if not is_versioned(path):
        why = "it was not made by 'drcil learn'" if os.path.isdir(path) else "there is no such directory"
        raise UserError(f"{path} is not a model that can be changed: {why}")


def current_version(path: Path) -> Path:
    """The model directory of the version that is in use."""
    said = read_sealed(path / CURRENT).get("version")
    if not isinstance(said, str) or not _NUMBER.fullmatch(said):
        raise UserError(f"{path / CURRENT} names no version")
    if not os.path.isdir(path / VERSIONS / said):
        raise UserError(f"{path / CURRENT} names version {said}, but {path / VERSIONS} does not have it")
    return path / VERSIONS / said


def read_current(path: Path, read: Callable[[Path], T]) -> T:
    """What ``read`` reads of the current version; again, if it fails and there is another one by then.

    Who reads takes no lock: a version that is undone or purged goes even while it is read.
    """
    for _ in range(_TRIES - 1):
        before = _line(path)
        try:
            return read(current_version(path))
        except UserError:
            if _line(path) == before:
                raise
    return read(current_version(path))


def add_version(path: Path, fill: Callable[[Path], None], kept: int = KEPT) -> Path:
    """A new version, which ``fill`` writes, in place of the current one; the oldest go if there are too many."""
    place = _place(path, max(_numbers(path), default=0) + 1)
    make_directory(path / VERSIONS)
    write_directory(place, fill)
    _use(place)
    # A kill before this line leaves one too many, which goes with the next change.
    for number in sorted(_numbers(path))[:-kept]:
        _remove(_place(path, number))
    return place


def earlier_version(path: Path) -> Path | None:
    """The version before the current one, if it is still kept."""
    current = int(current_version(path).name)
    before = [number for number in _numbers(path) if number < current]
    return _place(path, max(before)) if before else None


def undo(path: Path) -> Path:
    """Go back to the version before the current one, which is then gone."""
    undone, before = current_version(path), earlier_version(path)
    if before is None:
        raise UserError(f"{path} cannot be undone: no earlier version of it is kept")
    _use(before)
    # A kill before this line leaves it to the next change, as one that is not in use.
    _remove(undone)
    return before


def purge(path: Path) -> None:
    """Remove every version but the current one: what it was before cannot be found again."""
    current = int(current_version(path).name)
    for number in _numbers(path):
        if number != current:
            _remove(_place(path, number))


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Within the block no other process changes the model; what killed ones left behind is cleared away first."""
    make_directory(path)
    with locked(path / LOCK, f"another process is changing {path}; wait until it is done"):
        _clear(path)
        yield


def _clear(path: Path) -> None:
    """Remove what is half written, and versions after the current one: they were undone, or never in use."""
    current = int(current_version(path).name) if is_versioned(path) else 0
    unused = [number for number in _numbers(path) if number > current]
    if not current and unused not in ([], [1]):
        raise UserError(
            f"{path / VERSIONS} has versions, but there is no {CURRENT} that says which is in use; restore it"
        )
    for number in unused:
        _remove(_place(path, number))
    for place in (path, path / VERSIONS):
        for left in leftovers(place):
            remove(left)


def _remove(place: Path) -> None:
    """Take a version away at once, so that a kill leaves no half of it that could be taken for a version."""
    aside = temporary_name(place)
    remove_directory(aside)
    os.replace(place, aside)
    remove_directory(aside)


def _place(path: Path, number: int) -> Path:
    return path / VERSIONS / f"{number:04d}"


def _use(place: Path) -> None:
    path = place.parent.parent
    write_sealed(path / CURRENT, {"version": place.name})
    with suppress(OSError):
        sync_directory(path)


def _line(path: Path) -> tuple[int, int] | None:
    """Tells one line from the next, also where both name the same number: every change writes another file."""
    try:
        status = os.stat(path / CURRENT)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _numbers(path: Path) -> list[int]:
    if not os.path.isdir(path / VERSIONS):
        return []
    return [int(name) for name in directory_names(path / VERSIONS) if _NUMBER.fullmatch(name)]
