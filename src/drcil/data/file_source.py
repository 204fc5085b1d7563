"""Images in files: compact file lists, FileSource, search for unreadable files."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from ..files import open_regular, read_bytes, unreadable
from .decoding import (
    FILE_LIMIT,
    SCALED_FROM,
    UNREADABLE,
    Mode,
    Picture,
    Pixels,
    centre_view,
    damage,
    decode_full,
    error_text,
    open_image,
    open_picture,
    random_crop,
    random_view,
    read_picture,
    short_side,
    why_unreadable,
)
from .image_set import CropDraw, Int64, Source
from .source_refs import EmbeddedRef, FilesRef, KeptRef, LeafRef

if TYPE_CHECKING:
    from .loader import PictureCache

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jfif")


_SCAN_THREADS = 8
"""Directories listed in parallel: network drives have a high latency, but serve many requests at once."""
PackedNames = tuple[bytes, npt.NDArray[np.uint32]]
"""The names of some files as one run of bytes, and the length of each."""


@dataclass(frozen=True, eq=False)
class FileList:
    """Files by row: those of the first directory, then those of the second, and so on.

    Names are stored as one run of bytes with the offset of each, not as separate strings.
    """

    root: str
    directories: tuple[str, ...]
    """Relative to the root."""
    starts: Int64
    """The first row of each directory, and the number of rows."""
    names: bytes
    offsets: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, root: str | os.PathLike[str], directories: Iterable[tuple[str, Sequence[str]]]) -> FileList:
        """From pairs of a directory and the names in it."""
        return cls._join(root, ((directory, _pack(names)) for directory, names in directories))

    @classmethod
    def scan(cls, root: str | os.PathLike[str], directories: Sequence[str]) -> FileList:
        """The image files directly inside these directories, sorted by name."""
        return cls.scan_all(root, directories)[0]

    @classmethod
    def scan_all(
        cls, root: str | os.PathLike[str], directories: Sequence[str]
    ) -> tuple[FileList, tuple[IgnoredFiles, ...]]:
        """The same, and what else is in these directories. Each is listed once."""
        ignored: dict[str, IgnoredFiles] = {}

        def scan_directory(directory: str) -> PackedNames:
            listing = list_directory(Path(root, directory))
            others = sorted([*listing.directories, *listing.others])
            if others:
                ignored[directory] = IgnoredFiles(os.path.join(root, directory), len(others), others[0])
            return _pack(listing.images)

        with ThreadPoolExecutor(_SCAN_THREADS) as threads:
            files = cls._join(root, zip(directories, threads.map(scan_directory, directories), strict=True))
        return files, tuple(ignored[directory] for directory in directories if directory in ignored)

    @classmethod
    def _join(cls, root: str | os.PathLike[str], directories: Iterable[tuple[str, PackedNames]]) -> FileList:
        paths, contents, lengths = [], [], [np.zeros(1, dtype=np.uint32)]
        for path, (content, name_lengths) in directories:
            paths.append(path)
            contents.append(content)
            lengths.append(name_lengths)
        starts = np.cumsum([0, *map(len, lengths[1:])], dtype=np.int64)
        offsets = np.cumsum(np.concatenate(lengths), dtype=np.uint32)
        return cls(os.fspath(root), tuple(paths), starts, b"".join(contents), offsets)

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


def _pack(names: Sequence[str]) -> PackedNames:
    encoded = list(map(os.fsencode, names))
    return b"".join(encoded), np.fromiter(map(len, encoded), dtype=np.uint32, count=len(encoded))


class IgnoredFiles(NamedTuple):
    """Other entries of a directory than images: the number of names, and the first of them."""

    directory: str
    number: int
    example: str


class Listing(NamedTuple):
    """The sorted names in a directory, without hidden names."""

    images: list[str]
    """By their suffix: a name that is not a file, such as a broken link, is refused when it is opened."""
    directories: list[str]
    others: list[str]


def list_directory(directory: Path) -> Listing:
    listing = Listing([], [], [])
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                is_image = entry.name.lower().endswith(SUFFIXES)
                if _is_directory(entry) if is_image else entry.is_dir():
                    listing.directories.append(entry.name)
                elif is_image:
                    listing.images.append(entry.name)
                else:
                    listing.others.append(entry.name)
    except OSError as error:
        raise unreadable(Path(error.filename or directory), error) from None
    for names in listing:
        names.sort()
    return listing


def directory_names(directory: Path) -> list[str]:
    """The names of the directories in a directory, sorted; hidden ones are left out."""
    return list_directory(directory).directories


def is_text(name: str) -> bool:
    """Whether a name can be encoded as text: names outside the system's encoding cannot."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads to itself.
        return False


_READ_THREADS = 8
_CHUNK = 64


class PictureSource(Source):
    """Pictures of any size, each brought to ``size`` when it is read. A view depends on its row and key alone."""

    hint = "'drcil data check' lists all such files"
    """A hint that follows the error about an unreadable picture."""

    def __init__(self, size: int, resize: int | None = None, channels: int = 3) -> None:
        """``resize``: what the short side is scaled to in the test view (None: see `short_side`)."""
        if size < 1 or channels not in (1, 3):
            raise UserError(f"images of {size} pixels and {channels} channels are not possible; give 1 or 3 channels")
        self.size = size
        self.resize = max(size, resize or short_side(size))
        self.channels = channels
        self.mode: Mode = "RGB" if channels == 3 else "L"

    @abstractmethod
    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        """The picture of a row, which need not be decoded yet, for the time of a block."""

    @abstractmethod
    def name(self, row: int) -> str:
        """The name of a row in error messages."""

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        pixels = np.empty((len(rows), self.size, self.size, self.channels), dtype=np.uint8)
        seeds = [None] * len(rows) if crops is None else crops.seeds()
        for position, (row, seed) in enumerate(zip(rows.tolist(), seeds, strict=True)):
            try:
                pixels[position] = self.view(row, seed) if cache is None else self._cached_view(row, seed, cache)
            except UNREADABLE as error:
                reason = f"cannot be read as an image ({error_text(error)})"
                raise UserError(f"{self.name(row)} {reason}; {self.hint}") from error
        # Channels are taken apart all at once, and by numpy: per image, and in torch, it takes several times as long.
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        """The same, decoded by the fastest decoder; only the pixels are valid."""
        return self.picture(row)

    def file_bytes(self, row: int) -> bytes:
        """The encoded file of an image, if ``is_encoded``."""
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def view(self, row: int, seed: int | None) -> Pixels:
        """One image, as (size, size, channels): its test view, or the random crop of a seed."""
        with self.quick_picture(row) as picture:
            return self._cut(picture, seed)

    def _cut(self, picture: Picture, seed: int | None) -> Pixels:
        if seed is None:
            view = centre_view(picture, self.size, self.resize, self.mode)
            return np.asarray(view).reshape(self.size, self.size, self.channels)
        return random_view(picture, self.size, Random(seed), self.mode)

    def _cached_view(self, row: int, seed: int | None, cache: PictureCache) -> Pixels:
        """The same, cut out of the decoded picture in the cache."""
        pixels = cache.find(self, row)
        if pixels is None:
            with self.quick_picture(row) as picture:
                if min(picture.size) >= SCALED_FROM * self.size:  # It may be decoded at a smaller scale.
                    return self._cut(picture, seed)
                pixels = decode_full(picture, self.mode)
            cache.keep(self, row, pixels)
        if seed is not None:
            return random_crop(pixels, self.size, Random(seed))
        return self._cut(Image.fromarray(pixels if self.channels == 3 else pixels[..., 0]), None)


class FileSource(PictureSource):
    """The files of a list. ``skipped``: unreadable files, which have a row that no image set uses."""

    is_encoded = True

    def __init__(
        self,
        files: FileList,
        size: int,
        resize: int | None = None,
        channels: int = 3,
        skipped: Iterable[str] = (),
        ref: KeptRef | None = None,
    ) -> None:
        """``ref``: the reference of files inside a model (None: derived from the list of files)."""
        super().__init__(size, resize, channels)
        self.files = files
        self.skipped = tuple(skipped)
        self._ref = ref

    def resized(self, size: int, channels: int | None = None) -> FileSource:
        """The same files, read at another size."""
        source = FileSource(self.files, size, channels=channels or self.channels, skipped=self.skipped)
        source.hint = self.hint
        return source

    def __len__(self) -> int:
        return len(self.files)

    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        return open_picture(self.files.path(row))

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        return open_image(read_picture(self.files.path(row)))

    def file_bytes(self, row: int) -> bytes:
        return read_bytes(Path(self.files.path(row)), FILE_LIMIT)

    def name(self, row: int) -> str:
        return self.files.path(row)

    @cached_property
    def ref(self) -> LeafRef:
        """Root, directories and a digest of the names; without a root every path, if all can be written as text."""
        if self._ref is not None:
            return self._ref
        files = self.files
        ref = FilesRef.model_construct(size=self.size, resize=self.resize, channels=1 if self.channels == 1 else 3)
        if files.root:
            names: dict[str, Any] = {"root": files.root, "directories": files.directories, "digest": files.digest}
        else:
            paths = tuple(files.path(row) for row in range(len(files)))
            if not all(map(is_text, paths)):
                return EmbeddedRef()
            names = {"paths": paths}
        # Not validated: the names are correct, and there may be a million of them.
        return ref.model_copy(update=names)

    def digest(self, row: int) -> bytes:
        path = self.files.path(row)
        try:
            with open_regular(path) as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise unreadable(path, error) from error

    @classmethod
    def from_ref(cls, ref: FilesRef) -> FileSource:
        """The files of a reference, whose names must not have changed."""
        if ref.paths is not None:
            files = FileList.of_paths(ref.paths)
        else:
            root = ref.root or ""
            try:
                files = FileList.scan(root, ref.directories or ())
            except (UserError, ValueError) as error:
                raise UserError(f"images not found in {root}: {error}") from None
            if files.digest != ref.digest:
                raise UserError(f"the files in {root} have changed: images were added, removed or renamed since")
        return cls(files, ref.size, ref.resize, ref.channels)


def find_unreadable(files: FileList) -> dict[int, str]:
    """The rows of files that fail a quick check, with reasons."""
    return _check_rows(len(files), lambda row: damage(files.path(row)), None)


def find_unreadable_pictures(
    source: PictureSource, progress: Callable[[int, int], None] | None = None
) -> dict[int, str]:
    """The rows that cannot be decoded, with reasons. ``progress`` receives the pictures done and their total."""

    def look(row: int) -> str | None:
        try:
            opened = source.picture(row)
        except UNREADABLE as error:
            return error_text(error)
        return why_unreadable(opened, thorough=True)

    return _check_rows(len(source), look, progress)


def _check_rows(
    rows: int, look: Callable[[int], str | None], progress: Callable[[int, int], None] | None
) -> dict[int, str]:
    def check_chunk(start: int) -> list[tuple[int, str]]:
        return [(row, why) for row in range(start, min(start + _CHUNK, rows)) if (why := look(row)) is not None]

    damaged: dict[int, str] = {}
    with ThreadPoolExecutor(_READ_THREADS) as threads:
        for done, bad in enumerate(threads.map(check_chunk, range(0, rows, _CHUNK)), start=1):
            damaged.update(bad)
            if progress is not None:
                progress(min(done * _CHUNK, rows), rows)
    return damaged
