"""Pictures from disk kept decoded in memory, for all processes that read them.

What is kept is what the decoder gave, upright and whole, so views cut from it are bit for bit those cut from the
file. Pictures so large that some of their views are decoded at a smaller scale are left on disk.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from ...errors import UserError
from ...team import ALONE, Team
from .decode import SCALED_FROM, Picture, Pixels, random_crop, whole
from .files import PictureSource
from .imageset import ChainSource, Int64, Source
from .shared import SharedCount, forking, shared_bytes


class PictureCache:
    """Decoded pictures up to a budget of bytes. The first that come are kept, until it is cleared.

    Its memory is mapped before worker processes are forked, and so is theirs too: whatever one of them decodes,
    all find, also those that are started later.
    """

    def __init__(self, budget: int, team: Team = ALONE) -> None:
        """``team``: processes that share the pictures; they make, clear and ask for tables at the same time."""
        self._team = team
        self._arena = shared_bytes(budget, team)
        self._used = SharedCount(team)
        self._tables: dict[int, tuple[Source, Int64]] = {}

    @property
    def used(self) -> int:
        """Bytes of pictures that are kept."""
        return self._used.value

    def clear(self) -> None:
        """Forget all pictures; sources made before must not be read any more."""
        # Nobody reads or keeps any more, and nobody does again before it is done.
        self._team.wait()
        self._used.value = 0
        self._tables.clear()
        self._team.wait()

    def table(self, source: Source) -> Int64:
        """Where the pictures of a source are: per row the end of its pixels (0: not kept), width and height."""
        if id(source) not in self._tables:
            table = shared_bytes(3 * 8 * len(source), self._team).view(np.int64).reshape(-1, 3)
            # The source is held so that its id stays its own.
            self._tables[id(source)] = source, table
        return self._tables[id(source)][1]

    def find(self, table: Int64, row: int, channels: int) -> Pixels | None:
        with self._used.locked():
            end, width, height = table[row].tolist()
        if not end:
            return None
        return self._arena[end - width * height * channels : end].reshape(height, width, channels)

    def keep(self, table: Int64, row: int, pixels: Pixels) -> None:
        """Keep a picture, if there is room for it."""
        with self._used.locked():
            start, end = self._used.value, self._used.value + pixels.nbytes
            if end > len(self._arena):
                return
            self._used.value = end
        self._arena[start:end] = pixels.reshape(-1)
        height, width, _ = pixels.shape
        # Once more, so that whoever sees the entry sees the pixels too.
        with self._used.locked():
            table[row] = end, width, height


class CachedPictures(PictureSource):
    """The pictures of another source, decoded once where the cache has room."""

    def __init__(self, source: PictureSource, cache: PictureCache) -> None:
        super().__init__(source.size, source.resize, source.channels)
        self.source, self.cache, self.table = source, cache, cache.table(source)

    def __len__(self) -> int:
        return len(self.source)

    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        return self.source.picture(row)

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        return self.source.quick_picture(row)

    def name(self, row: int) -> str:
        return self.source.name(row)

    def describe(self) -> dict[str, Any]:
        return self.source.describe()

    def view(self, row: int, key: int | None) -> Pixels:
        pixels = self.cache.find(self.table, row, self.channels)
        if pixels is None:
            with self.quick_picture(row) as picture:
                if min(picture.size) >= SCALED_FROM * self.size:
                    return self.shown(picture, key)
                pixels = whole(picture, self.mode)
            self.cache.keep(self.table, row, pixels)
        if key is not None:
            return random_crop(pixels, self.size, Random(key))
        return self.shown(Image.fromarray(pixels if self.channels == 3 else pixels[..., 0]), None)


def through(cache: PictureCache, source: Source) -> Source:
    """The source, with its pictures on disk read through the cache."""
    if isinstance(source, ChainSource):
        return ChainSource([through(cache, part) for part in source.parts])
    return CachedPictures(source, cache) if isinstance(source, PictureSource) else source


def require_forked(workers: int) -> None:
    """Processes share the cache by being forked from one that has it."""
    if workers and forking() is None:
        raise UserError("--cache cannot be shared with worker processes on this system; use --workers 0 with it")
