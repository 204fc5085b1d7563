"""The names of very many files in very little memory: ImageNet's 1.3 million cost about 30 MB."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...reading import unreadable
from .imageset import Int64

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jfif")


class Names(NamedTuple):
    """The names of some files: one run of bytes, and the length of each."""

    content: bytes | memoryview
    lengths: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        encoded = [os.fsencode(name) for name in names]
        return cls(b"".join(encoded), np.fromiter(map(len, encoded), dtype=np.uint32, count=len(encoded)))


@dataclass(frozen=True, eq=False)
class FileList:
    """Files by row: those of the first directory, then those of the second, and so on.

    Names are kept as one run of bytes with the place where each begins, not as a string each.
    """

    root: str
    directories: tuple[str, ...]
    """Relative to the root."""
    starts: Int64
    """The first row of each directory, and the number of rows."""
    names: bytes
    offsets: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, root: str | os.PathLike[str], groups: Iterable[tuple[str, Sequence[str]]]) -> FileList:
        """From pairs of a directory and the names in it."""
        return cls.joined(root, ((directory, Names.of(names)) for directory, names in groups))

    @classmethod
    def joined(cls, root: str | os.PathLike[str], groups: Iterable[tuple[str, Names]]) -> FileList:
        """From pairs of a directory and the names in it, packed."""
        directories: list[str] = []
        starts = [0]
        contents: list[bytes | memoryview] = []
        lengths = [np.zeros(1, dtype=np.uint32)]
        for directory, names in groups:
            directories.append(directory)
            starts.append(starts[-1] + len(names.lengths))
            contents.append(names.content)
            lengths.append(names.lengths)
        offsets = np.cumsum(np.concatenate(lengths), dtype=np.uint32)
        return cls(os.fspath(root), tuple(directories), np.array(starts, dtype=np.int64), b"".join(contents), offsets)

    @classmethod
    def scan(cls, root: str | os.PathLike[str], directories: Sequence[str]) -> FileList:
        """The image files directly inside these directories, sorted by name."""
        return cls.of(root, ((directory, image_names(Path(root, directory))) for directory in directories))

    @classmethod
    def of_paths(cls, paths: Sequence[str | os.PathLike[str]]) -> FileList:
        """Exactly these files, in this order."""
        absolute = [os.path.split(os.path.abspath(path)) for path in paths]
        runs = groupby(absolute, key=lambda pair: pair[0])
        return cls.of("", ((directory, [name for _, name in run]) for directory, run in runs))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def counts(self) -> Int64:
        """Files per directory."""
        return np.diff(self.starts)

    def name(self, row: int) -> str:
        return os.fsdecode(self.names[self.offsets[row] : self.offsets[row + 1]])

    def encoded(self, rows: Int64) -> list[bytes]:
        """The names of many rows as the system has them; several times as fast as one by one."""
        ends = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        return [self.names[start:end] for start, end in ends]

    def directory_of(self, rows: Int64) -> Int64:
        """The position of the directory that each row is in."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def path(self, row: int) -> str:
        directory = bisect_right(self._starts, row) - 1
        return os.path.join(self.root, self.directories[directory], self.name(row))

    @cached_property
    def _starts(self) -> list[int]:
        """For one row at a time, where an array takes several times as long."""
        return list(map(int, self.starts))

    @cached_property
    def digest(self) -> str:
        """Equal for equal lists of names, wherever the root is."""
        digest = hashlib.blake2b("\0".join(self.directories).encode(errors="surrogateescape"), digest_size=16)
        for part in (self.starts.tobytes(), self.offsets.tobytes(), self.names):
            digest.update(part)
        return digest.hexdigest()


def image_names(directory: Path) -> list[str]:
    """The names of the image files in a directory, sorted; hidden files are left out.

    By their names: what only looks like a file, such as a link that leads nowhere, is refused when it is opened.
    """
    return _names(directory, lambda entry: entry.name.lower().endswith(SUFFIXES) and not _is_directory(entry))


def other_names(directory: Path) -> list[str]:
    """The names of everything else in a directory, directories included, sorted; hidden ones are left out."""
    return _names(directory, lambda entry: not entry.name.lower().endswith(SUFFIXES) or _is_directory(entry))


def directory_names(directory: Path) -> list[str]:
    """The names of the directories in a directory, sorted; hidden ones are left out."""
    return _names(directory, lambda entry: entry.is_dir())


def is_text(name: str) -> bool:
    """Whether a name can be written down: those that are not in the system's encoding cannot."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads to itself.
        return False


def _names(directory: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and wanted(entry))
    except OSError as error:
        raise unreadable(Path(error.filename or directory), error) from None
