"""Versioned model directory: current version, add, undo, purge, lock.

A change is a new version beside the others. It becomes the current one atomically, so that at every moment the
directory is either the old model or the new one. Versions share the files that they have in common.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..data.file_source import directory_names
from ..errors import UserError
from ..files import (
    atomic_directory,
    file_lock,
    make_directory,
    read_checksummed_json,
    remove,
    remove_atomically,
    require_directories,
    stale_temporary_files,
    write_checksummed_json,
)
from .model_format import LEARNING, STATE, TASKS

CURRENT, VERSIONS, LOCK = "current.json", "versions", ".lock"
KEPT = 5
"""Number of versions to keep, including the current one."""
_NUMBER = re.compile("[0-9]{4,9}")
_TRIES = 5
"""Attempts to read a version while another process replaces it."""

T = TypeVar("T")


def is_versioned(path: Path) -> bool:
    """Whether it is a model store."""
    return os.path.isfile(path / CURRENT)


def require_store(path: Path) -> None:
    """Check that a directory is a model store."""
    if not is_versioned(path):
        reason = "it was not made by 'drcil learn'" if os.path.isdir(path) else "there is no such directory"
        raise UserError(f"{path} is not a model that can be changed: {reason}")


def has_unfinished_update(path: Path) -> bool:
    """Whether there are snapshots from which an interrupted 'drcil learn' resumes."""
    return any((path / LEARNING).glob("*/*.safetensors"))


def current_version(path: Path) -> Path:
    """The model directory of the current version."""
    version = read_checksummed_json(path / CURRENT).get("version")
    if not isinstance(version, str) or not _is_number(version):
        raise UserError(f"{path / CURRENT} names no version")
    if not os.path.isdir(path / VERSIONS / version):
        raise UserError(f"{path / CURRENT} names version {version}, but {path / VERSIONS} does not have it")
    return path / VERSIONS / version


def read_current(path: Path, read: Callable[[Path], T]) -> T:
    """The result of ``read`` for the current version; tried again if another process has replaced the version.

    Readers take no lock: a version can be undone or purged while it is read.
    """
    for _ in range(_TRIES - 1):
        before = _pointer_stat(path)
        try:
            return read(current_version(path))
        except UserError:
            if _pointer_stat(path) == before:
                raise
    return read(current_version(path))


def add_version(path: Path, fill: Callable[[Path], None], limit: int = KEPT) -> Path:
    """Add a version, which ``fill`` writes, and make it current. The oldest are removed if there are too many."""
    version = _next_version(path)
    with atomic_directory(version, root=path) as directory:
        fill(directory)
    _set_current(version)
    # A kill before this line leaves one version too many, which the next change removes.
    for number in sorted(_removable(path))[:-limit]:
        _remove(path, number)
    return version


def earlier_version(path: Path) -> Path | None:
    """The version before the current one, if it is still kept."""
    current = int(current_version(path).name)
    before = [number for number in _numbers(path) if number < current]
    return _version_path(path, max(before)) if before else None


def undo(path: Path, read: Callable[[Path], T]) -> T:
    """Restore the previous version and remove the current one; returns the result of ``read`` for it.

    The current version stays in use if the other one cannot be read.
    """
    undone, before = current_version(path), earlier_version(path)
    if before is None:
        raise UserError(f"{path} cannot be undone: no earlier version of it is kept")
    earlier = read(before)
    _set_current(before)
    # A kill before this line leaves an unused version, which the next change removes.
    _remove(path, int(undone.name))
    return earlier


def purge(path: Path) -> None:
    """Remove every version but the current one. This cannot be undone."""
    current = int(current_version(path).name)
    for number in _removable(path):
        if number != current:
            _remove(path, number)
    for number in _numbers(path):
        if number < current:
            version = _version_path(path, number)
            raise UserError(f"{version} is not a version that drcil can read, so it is still there; remove it")


@contextmanager
def lock_store(path: Path) -> Iterator[None]:
    """Lock the model within the block. Leftovers of killed processes are removed first."""
    make_directory(path)
    with file_lock(path / LOCK, f"another process is changing {path}; wait until it is done"):
        require_directories(path, VERSIONS, LEARNING)
        for parent in (path / VERSIONS, path / LEARNING):
            require_directories(parent, *(directory_names(parent) if os.path.isdir(parent) else ()))
        _clear(path)
        yield


def _clear(path: Path) -> None:
    """Remove partly written files, and versions after the current one, which were undone or never used."""
    if not is_versioned(path) and _removable(path) == [1] and not has_unfinished_update(path):
        # The version is complete, and what was learnt is stored only there.
        _set_current(_version_path(path, 1))
    current = int(current_version(path).name) if is_versioned(path) else 0
    unused = [number for number in _removable(path) if number > current]
    if not current and unused not in ([], [1]):
        raise UserError(
            f"{path / VERSIONS} has versions, but there is no {CURRENT} that says which is in use; restore it"
        )
    for number in unused:
        _remove(path, number)
    for left in (*stale_temporary_files(path, CURRENT.__eq__), *stale_temporary_files(path / VERSIONS, _is_number)):
        remove(left, root=path)


def _remove(path: Path, number: int) -> None:
    """Remove a version atomically: a kill leaves no partial version."""
    remove_atomically(_version_path(path, number), root=path)


def _version_path(path: Path, number: int) -> Path:
    return path / VERSIONS / f"{number:04d}"


def _next_version(path: Path) -> Path:
    """The path of the next version, after all existing names."""
    number = max(_removable(path), default=0) + 1
    while os.path.lexists(_version_path(path, number)):
        number += 1
    return _version_path(path, number)


def _set_current(version: Path) -> None:
    path = version.parent.parent
    write_checksummed_json(path / CURRENT, {"version": version.name})


def _pointer_stat(path: Path) -> tuple[int, int] | None:
    """Tells one line from the next, also where both name the same number: every change writes another file."""
    try:
        status = os.stat(path / CURRENT)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _numbers(path: Path) -> list[int]:
    if not os.path.isdir(path / VERSIONS):
        return []
    return [int(name) for name in directory_names(path / VERSIONS) if _is_number(name)]


def _removable(path: Path) -> list[int]:
    """The numbers of the versions that drcil wrote: directories with a model, not links."""
    paths = {number: _version_path(path, number) for number in _numbers(path)}
    return [
        number for number, version in paths.items() if not os.path.islink(version) and os.path.isfile(version / STATE)
    ]


def _is_number(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None and name == f"{int(name):04d}"


def model_at(path: Path) -> Path:
    """The model directory that a path means: itself, its current version, or the last finished task of a run."""
    if is_versioned(path):
        return current_version(path)
    if not os.path.isfile(path / STATE) and os.path.isdir(path / TASKS):
        finished = [name for name in directory_names(path / TASKS) if os.path.isfile(path / TASKS / name / STATE)]
        return path / TASKS / max(finished, key=lambda name: (len(name), name)) if finished else path
    return path
