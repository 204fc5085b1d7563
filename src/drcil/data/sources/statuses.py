"""How large files are and when they were modified, for very many of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...reading import unreadable
from .filelist import FileList
from .imageset import Int64

_THREADS = 8
"""Directories that are looked through at once: a network drive takes long to answer, and answers many at a time."""
_BY_HANDLE = os.stat in os.supports_dir_fd


def statuses(files: FileList, rows: Int64) -> tuple[Int64, Int64]:
    """Bytes of the files at these rows, and when they were modified, in microseconds; links are followed.

    Every file is asked for. A listing cannot tell: content that is replaced in place leaves the directory as it is.
    """
    found = np.empty((2, len(rows)), dtype=np.int64)
    directories = files.directory_of(rows)
    order = np.argsort(directories, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(directories[order])) + 1) if len(rows) else []

    def look(group: Int64) -> None:
        path = os.path.join(files.root, files.directories[int(directories[group[0]])])
        own = []
        with _opened(path) as handle:
            for row, name in zip(rows[group].tolist(), files.encoded(rows[group]), strict=True):
                try:
                    status = os.stat(files.path(row)) if handle is None else os.stat(name, dir_fd=handle)
                except OSError as error:
                    raise unreadable(Path(files.path(row)), error) from None
                own.append((status.st_size, status.st_mtime_ns // 1000))
        found[:, group] = np.array(own, dtype=np.int64).T

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(look, groups):
            pass
    return found[0], found[1]


@contextmanager
def _opened(directory: str) -> Iterator[int | None]:
    """A directory from which names are looked up without the way to it; None where the system has no such thing."""
    try:
        handle = os.open(directory or os.curdir, getattr(os, "O_PATH", os.O_RDONLY)) if _BY_HANDLE else None
    except OSError:
        handle = None
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)
