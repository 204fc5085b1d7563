"""Batches of an image set: gathered from memory, or decoded in worker processes. The order is the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...errors import UserError
from ..augment.framing import resized_crop
from .decode import random_box
from .imageset import ChainSource, Draw, ImageSet, Int64, Mask, Source, indices
from .shared import forking

TOGETHER = 3 << 20
"""Bytes of images to read and augment at once, where one batch has less: a thousand images of CIFAR."""

PREFETCH = 4
"""Pieces that each worker process reads ahead."""


def view(source: Source, rows: Int64, draw: Draw | None) -> Tensor:
    """The images as the source has them; with a draw, images in memory are given the random crop that files have.

    Sources of both kinds meet where a learner of files is given arrays, or finds its exemplars saved as pixels.
    """
    images = source.read(rows, draw)
    if draw is None:
        return images
    kinds = [part.in_memory for part in source.parts] if isinstance(source, ChainSource) else [source.in_memory]
    part = source.locate(rows)[0] if isinstance(source, ChainSource) else np.zeros_like(rows)
    whole = np.flatnonzero(np.array(kinds)[part])
    if draw.wanted is not None:
        whole = whole[draw.wanted[whole]]
    if not len(whole):
        return images
    boxes = [random_box(source.size, source.size, Random(key)) for key in draw.subset(whole).view_keys()]
    corners = torch.tensor([(box.top, box.left, box.height, box.width) for box in boxes])
    places = indices(whole, images.device)
    images[places] = resized_crop(images[places], corners)
    return images


def cut(positions: Int64, size: int, join_single: bool = False) -> list[Int64]:
    """The positions of each batch. The last may be smaller; ``join_single``: one of one image joins that before it."""
    starts = list(range(0, len(positions), size))
    if join_single and len(starts) > 1 and len(positions) - starts[-1] == 1:
        starts.pop()
    return np.split(positions, starts[1:]) if starts else []


def batches_together(source: Source, batch_size: int) -> int:
    """How many batches are read and augmented at once: more than one where images are small.

    Augmentation is many kernels, which on a batch of small images are over before they have paid for their start.
    """
    return max(1, TOGETHER // (batch_size * source.channels * source.size**2))


class Reader:
    """Reads from one image set, piece by piece, as often as asked.

    Images on disk are decoded by worker processes, which stay until the reader goes: starting them takes as long as
    decoding some hundred small images.
    """

    def __init__(self, images: ImageSet, workers: int, pinned: bool = False) -> None:
        """``pinned``: decode into memory from which a GPU can fetch by itself."""
        self.images = images
        self._workers = 0 if images.source.in_memory else workers
        self._pinned = pinned
        self._wanted: list[_Wanted] = []
        self._loader: DataLoader[Tensor | UserError] | None = None

    def read(
        self,
        pieces: Sequence[Int64],
        key: int | None = None,
        places: Sequence[Int64] | None = None,
        wanted: Mask | None = None,
    ) -> Iterator[Tensor]:
        """The images at the positions of each piece, as uint8; with the key of an epoch, their training views.

        These depend on where in the epoch each image is taken, but not on how it is cut. ``places`` says where, by
        piece; None: one piece follows another, from the first image on. ``wanted``: at which places of the epoch a
        training view is wanted at all; None: at all of them.
        """
        if places is None:
            ends = np.cumsum([len(piece) for piece in pieces])
            places = [np.arange(end - len(piece), end) for piece, end in zip(pieces, ends.tolist(), strict=True)]
        self._wanted[:] = [
            _Wanted(
                self.images.rows[piece],
                None if key is None else Draw(key, place, None if wanted is None else wanted[place]),
            )
            for piece, place in zip(pieces, places, strict=True)
        ]
        if self._workers == 0 or not self._wanted:
            yield from (view(self.images.source, *wanted) for wanted in self._wanted)
            return
        workers = min(self._workers, len(pieces))
        if self._loader is None or self._loader.num_workers < workers:
            self._loader = self._started(workers)
        for read in self._loader:
            if isinstance(read, UserError):
                try:
                    raise read
                finally:
                    # Else error and frame hold each other until the garbage collector comes; and of workers that it
                    # finds, torch waits five seconds for each.
                    del read
            yield read

    def _started(self, workers: int) -> DataLoader[Tensor | UserError]:
        return DataLoader(
            _Views(self.images.source),
            batch_size=None,
            sampler=self._wanted,
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context=forking(),
            prefetch_factor=PREFETCH,
            pin_memory=self._pinned,
            # Its own generator: otherwise the loader draws a seed from torch's global one.
            generator=torch.Generator(),
        )


class _Wanted(NamedTuple):
    """What to read: some rows of a source, with the draw of their training views, if it is these."""

    rows: Int64
    draw: Draw | None


class _Views(Dataset[Tensor | UserError]):
    """Item ``wanted`` is what was asked for; it depends on that alone, not on who reads it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, wanted: _Wanted) -> Tensor | UserError:
        try:
            return view(self.source, *wanted)
        except UserError as error:
            # Handed over rather than raised: the loader would wrap it in the traceback of the worker.
            return error
