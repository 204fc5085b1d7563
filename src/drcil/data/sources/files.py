"""Images on disk: opened when they are read, in whichever process reads them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...errors import UserError
from ...reading import file_size, read_bytes, unreadable
from .decode import Mode, Picture, Pixels, centre_view, random_view, short_side
from .description import Files
from .filelist import FileList, is_text
from .imageset import Draw, Int64, Source
from .listing import listed
from .opening import FILE_LIMIT, UNREADABLE, damage, damage_of, open_picture, quickly, read_picture, reason

_THREADS = 8
_CHUNK = 64


class PictureSource(Source):
    """Pictures of any size, each brought to ``size`` when it is read. A view depends on its row and key alone."""

    advice = "'drcil data check' lists all such files"
    """What to do about a picture that cannot be read."""

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
        """What to call a row in an error."""

    def read(self, rows: Int64, draw: Draw | None = None) -> Tensor:
        pixels = np.empty((len(rows), self.size, self.size, self.channels), dtype=np.uint8)
        keys = [None] * len(rows) if draw is None else draw.view_keys()
        for place, (row, key) in enumerate(zip(rows.tolist(), keys, strict=True)):
            try:
                pixels[place] = self.view(row, key)
            except UNREADABLE as error:
                why = f"cannot be read as an image ({reason(error)})"
                raise UserError(f"{self.name(row)} {why}; {self.advice}") from error
        # Channels are taken apart all at once, and by numpy: per image, and in torch, it takes several times as long.
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        """The same for whoever needs its pixels and nothing else."""
        return self.picture(row)

    def view(self, row: int, key: int | None) -> Pixels:
        """One image, as (size, size, channels): its test view, or the training view of a key."""
        with self.quick_picture(row) as picture:
            return self.shown(picture, key)

    def shown(self, picture: Picture, key: int | None) -> Pixels:
        """What is seen of a picture."""
        if key is None:
            view = centre_view(picture, self.size, self.resize, self.mode)
            return np.asarray(view).reshape(self.size, self.size, self.channels)
        return random_view(picture, self.size, Random(key), self.mode)


class EncodedSource(PictureSource):
    """Pictures that are on disk as their files are."""

    @abstractmethod
    def content(self, row: int) -> bytes:
        """The file of a picture, not decoded."""


class FileSource(EncodedSource):
    """The files of a list. ``skipped`` names those found unreadable: they keep their row, but no image set has it."""

    def __init__(
        self,
        files: FileList,
        size: int,
        resize: int | None = None,
        channels: int = 3,
        skipped: Iterable[str] = (),
    ) -> None:
        super().__init__(size, resize, channels)
        self.files = files
        self.skipped = tuple(skipped)

    def __len__(self) -> int:
        return len(self.files)

    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        return open_picture(self.files.path(row))

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        return quickly(read_picture(self.files.path(row)))

    def content(self, row: int) -> bytes:
        return read_bytes(Path(self.files.path(row)), FILE_LIMIT)

    def name(self, row: int) -> str:
        return self.files.path(row)

    def describe(self) -> dict[str, Any]:
        """Root, directories and a digest of the names; without a root, every path that is text, which JSON can keep."""
        view = {"kind": "files", "size": self.size, "resize": self.resize, "channels": self.channels}
        files = self.files
        if not files.root:
            paths = [files.path(row) for row in range(len(files))]
            return {**view, "paths": paths} if all(map(is_text, paths)) else {"kind": "embedded"}
        return {**view, "root": files.root, "directories": list(files.directories), "digest": files.digest}

    def digest(self, row: int) -> bytes:
        path = Path(self.files.path(row))
        file_size(path)
        try:
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise unreadable(path, error) from error

    @classmethod
    def found(cls, description: Files) -> FileSource:
        """The source a description tells of, if its files are still called what they were."""
        if description.paths is not None:
            files = FileList.of_paths(description.paths)
        else:
            root = description.root or ""
            try:
                files = listed(root, description.directories or ())
            except (UserError, ValueError) as error:
                raise UserError(f"images not found in {root}: {error}") from None
            if files.digest != description.digest:
                raise UserError(f"the files in {root} have changed: images were added, removed or renamed since")
        return cls(files, description.size, description.resize, description.channels)


def damaged(files: FileList) -> dict[int, str]:
    """The rows of files that cannot be read at a first look, and why."""
    return _damaged(len(files), lambda row: damage(files.path(row)), None)


def damaged_pictures(source: PictureSource, progress: Callable[[int, int], None] | None = None) -> dict[int, str]:
    """The rows that cannot be decoded, and why. ``progress`` hears of pictures done and pictures in all."""

    def look(row: int) -> str | None:
        try:
            opened = source.picture(row)
        except UNREADABLE as error:
            return reason(error)
        return damage_of(opened, thorough=True)

    return _damaged(len(source), look, progress)


def _damaged(
    rows: int, look: Callable[[int], str | None], progress: Callable[[int, int], None] | None
) -> dict[int, str]:
    def some(start: int) -> list[tuple[int, str]]:
        return [(row, why) for row in range(start, min(start + _CHUNK, rows)) if (why := look(row)) is not None]

    found: dict[int, str] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for done, bad in enumerate(threads.map(some, range(0, rows, _CHUNK)), start=1):
            found.update(bad)
            if progress is not None:
                progress(min(done * _CHUNK, rows), rows)
    return found
