"""Listings of very many files, kept from one process to the next: ImageNet's are read from an index in a second.

An index is made where more than 100,000 files are listed, in the user's cache directory (``$XDG_CACHE_HOME/drcil``,
else ``~/.cache/drcil``): data may be read-only and belong to others. It may be deleted at any time, and is only a
shortcut: what is listed is the same with and without it. For every directory it has the names of the images and a
stamp. While the directory has that stamp its names are those; otherwise it is read again. Of a file it has the name
alone: nothing short of looking at the file tells whether its content has changed.

An index that is damaged, of another version or of other data is as good as none, and so is a cache that cannot be
written to.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...disk import finished_file, leftovers, remove
from ...errors import UserError
from ...reading import CHECKSUM, checksum, open_file, unsealed
from .filelist import FileList, Names, image_names

LARGE = 100_000
"""Files beyond which a listing is kept. Of fewer, `datasets.folder` opens each, which takes longer than listing."""
SETTLED = 2.0
"""Seconds for which a directory must not have changed before it was read: the coarsest clock of a file system."""
_KEPT, _FORGOTTEN = 8, 3600.0
"""Indices in the cache; seconds after which what is left of an interrupted write is removed."""
_THREADS = 8
"""Directories that are asked for at once. A network drive takes long to answer, and answers many at a time."""
_LIMIT = 2**31
_LENGTH = np.dtype("<u4")


class Stamp(NamedTuple):
    """What changes when a name is added to a directory, removed or replaced, or another directory takes its place.

    The time of modification can be set back, as programs that copy trees do; the time of change cannot.
    """

    inode: int
    modified: int
    changed: int

    @classmethod
    def of(cls, directory: str | os.PathLike[str]) -> Stamp | None:
        """None: there is no such directory, or it cannot be looked at."""
        try:
            status = os.stat(directory)
        except (OSError, ValueError):
            return None
        return cls(status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


class Listed(NamedTuple):
    """The image files of one directory. Without a stamp they may be others by now."""

    names: Names
    stamp: Stamp | None


def listed(
    root: str | os.PathLike[str], directories: Sequence[str], *, large: int = LARGE, settled: float = SETTLED
) -> FileList:
    """The image files directly inside these directories, sorted by name, as ``FileList.scan`` has them."""
    place = _place(root)
    index = {} if place is None else _read(place, root)

    def look(directory: str) -> Listed:
        path, known = Path(root, directory), index.get(directory)
        return known if known is not None and known.stamp == Stamp.of(path) else _scanned(path, settled)

    with ThreadPoolExecutor(_THREADS) as threads:
        found = dict(zip(directories, threads.map(look, directories), strict=True))
    files = FileList.joined(root, ((directory, found[directory].names) for directory in directories))
    news = any(each.stamp is not None and each is not index.get(directory) for directory, each in found.items())
    if place is not None and len(files) > large and news:
        others = {directory: each for directory, each in index.items() if directory not in found}
        with suppress(OSError, UserError):
            _write(place, root, {**_current(root, others), **found})
            _tidy(place.parent)
    return files


def _scanned(directory: Path, settled: float) -> Listed:
    began, before = time.time_ns(), Stamp.of(directory)
    names = Names.of(image_names(directory))
    # A change within a tick of the file system's clock after this one would leave the stamp as it is.
    at_rest = before is not None and began - max(before.modified, before.changed) >= settled * 1e9
    return Listed(names, before if at_rest and before == Stamp.of(directory) else None)


def _current(root: str | os.PathLike[str], index: Mapping[str, Listed]) -> dict[str, Listed]:
    return {directory: each for directory, each in index.items() if each.stamp == Stamp.of(Path(root, directory))}


class _Header(BaseModel):
    """The first line of an index; names and lengths follow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    root: str
    directories: tuple[tuple[str, Stamp, int, int], ...]
    """With the number of files and the bytes of their names."""
    digest: str
    """Of all lengths and names."""


def _read(place: Path, root: str | os.PathLike[str]) -> dict[str, Listed]:
    """What the index at this place says of a root; nothing if it is not there, or not sound."""
    try:
        with open_file(place, _LIMIT) as file:
            header = _Header.model_validate(unsealed(place, json.loads(file.readline())))
            return _entries(header, file) if header.root == os.path.realpath(root) else {}
    except (OSError, ValueError, UserError, MemoryError, RecursionError):
        return {}


def _entries(header: _Header, file: BinaryIO) -> dict[str, Listed]:
    rows = np.cumsum([0, *(count for _, _, count, _ in header.directories)]).tolist()
    ends = np.cumsum([0, *(size for _, _, _, size in header.directories)]).tolist()
    lengths = file.read(rows[-1] * _LENGTH.itemsize)
    content = file.read()
    if _digest([lengths, content]) != header.digest:
        return {}
    numbers, names = np.frombuffer(lengths, dtype=_LENGTH).astype(np.uint32, copy=False), memoryview(content)
    return {
        directory: Listed(Names(names[ends[at] : ends[at + 1]], numbers[rows[at] : rows[at + 1]]), stamp)
        for at, (directory, stamp, _, _) in enumerate(header.directories)
    }


def _write(place: Path, root: str | os.PathLike[str], found: Mapping[str, Listed]) -> None:
    """Keep what can be told to be the same later. It is written piece by piece, without a second copy."""
    kept = [(directory, each.stamp, each.names) for directory, each in found.items() if each.stamp is not None]
    lengths = [names.lengths.astype(_LENGTH, copy=False).tobytes() for _, _, names in kept]
    pieces = [*lengths, *(names.content for _, _, names in kept)]
    entries = tuple((directory, stamp, len(names.lengths), len(names.content)) for directory, stamp, names in kept)
    header = _Header(root=os.path.realpath(root), directories=entries, digest=_digest(pieces)).model_dump(mode="json")
    with finished_file(place) as made, open(made, "wb") as file:
        file.write(json.dumps({**header, CHECKSUM: checksum(header)}).encode() + b"\n")
        file.writelines(pieces)


def _digest(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _place(root: str | os.PathLike[str]) -> Path | None:
    """Where the index of a root is; None: there is no place for any.

    The root's inode is part of the name, for machines that share a home, but have data of their own at the same path.
    """
    cache, stamp = _cache_directory(), Stamp.of(root)
    if cache is None or stamp is None:
        return None
    name = _digest([os.fsencode(os.path.realpath(root)), b"\0%d" % stamp.inode])
    return cache / "drcil" / "listings" / f"{name}.listing"


def _cache_directory() -> Path | None:
    given = [os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("LOCALAPPDATA", ""), os.path.expanduser("~/.cache")]
    # Others must be ignored, says the XDG specification; and a home that is not known stays '~'.
    return next((Path(each) for each in given if os.path.isabs(each)), None)


def _tidy(directory: Path) -> None:
    """Let go of the oldest indices, and of what interrupted writes left."""
    paths = sorted(directory.glob("*.listing"), key=os.path.getmtime)
    forgotten = time.time() - _FORGOTTEN
    for path in [*paths[:-_KEPT], *(each for each in leftovers(directory) if os.path.getmtime(each) < forgotten)]:
        remove(path)
