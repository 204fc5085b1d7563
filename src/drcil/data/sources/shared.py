"""Memory that several processes of a machine share: those that were forked from one, and those of a team."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from ...team import Team

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext

Bytes = npt.NDArray[np.uint8]
_IN_MEMORY = "/dev/shm"
"""Where files are that are never written to a disk, on systems that have such a place."""


def shared_bytes(size: int, team: Team) -> Bytes:
    """So many zeros, for all processes of the team that are on this machine, and for those forked from them.

    All processes of the team ask for them at the same time.
    """
    if team.alone:
        return _mapped(-1, size)
    handle = _common_file(team)
    try:
        os.truncate(handle, size)
        return _mapped(handle, size)
    finally:
        os.close(handle)


class SharedCount:
    """A number, and a lock, for all of these processes."""

    def __init__(self, team: Team) -> None:
        self._alone = (forking() or multiprocessing.get_context()).Value("q", 0) if team.alone else None
        self._number = shared_bytes(8, team).view(np.int64)
        self._handle = -1 if team.alone else _common_file(team)

    @property
    def value(self) -> int:
        return int(self._number[0])

    @value.setter
    def value(self, number: int) -> None:
        self._number[0] = number

    def locked(self) -> AbstractContextManager[Any]:
        """Within the block no other process is."""
        return self._alone.get_lock() if self._alone is not None else self._locked()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl

        # Of the process: those that were forked are others.
        fcntl.lockf(self._handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._handle, fcntl.LOCK_UN)


def forking() -> ForkContext | None:
    """How to start processes that share this one's memory, whatever the default is; None where it cannot be done."""
    # On macOS a process that was forked may die in the system's own libraries.
    can = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork") if can else None


def _common_file(team: Team) -> int:
    """A file without a name that all processes of the team on this machine have open."""
    hosts = team.everyone(platform.node())
    first = hosts.index(platform.node())
    path, handle = "", -1
    if team.rank == first:
        handle, path = tempfile.mkstemp(prefix="drcil-", dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None)
    path = team.everyone(path)[first]
    if team.rank != first:
        handle = os.open(path, os.O_RDWR)
    # Once all have it, its name is not needed; what is left when they end is nothing.
    team.wait()
    if team.rank == first:
        os.unlink(path)
    return handle


def _mapped(handle: int, size: int) -> Bytes:
    try:
        return np.frombuffer(mmap.mmap(handle, max(1, size)), dtype=np.uint8)[:size]
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(f"cannot allocate a cache of {size} bytes ({error}); use a smaller one") from None
