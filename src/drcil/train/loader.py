"""Batches of an image set: gathered from memory, or decoded in worker processes. The order is the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.augment.pipeline import random_resized_crop
from ..data.imageset import ChainSource, ImageSet, Int64, Source
from ..errors import UserError
from ..keys import generator


def view(source: Source, rows: Int64, key: int | None) -> Tensor:
    """The images as the source has them; with a key, images in memory are given the random crop that files have.

    Sources of both kinds meet where a learner of files is given arrays, or finds its exemplars saved as pixels.
    """
    images = source.read(rows, key)
    if key is None:
        return images
    kinds = [part.in_memory for part in source.parts] if isinstance(source, ChainSource) else [source.in_memory]
    if not any(kinds):
        return images
    part = source.locate(rows)[0] if isinstance(source, ChainSource) else np.zeros_like(rows)
    whole = torch.from_numpy(np.flatnonzero(np.array(kinds)[part])).to(images.device)
    images[whole] = random_resized_crop(images[whole], generator(key, "in memory", rows.tobytes().hex()))
    return images


class _Reads(Dataset[Tensor | UserError]):
    """Item i is the i-th batch; what it holds depends on its rows and the key alone, not on who reads it."""

    def __init__(self, source: Source, rows: Sequence[Int64], key: int | None) -> None:
        self.source, self.rows, self.key = source, rows, key

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor | UserError:
        try:
            return view(self.source, self.rows[index], self.key)
        except UserError as error:
            # Handed over rather than raised: the loader would wrap it in the traceback of the worker.
            return error


def cut(positions: Int64, size: int, join_single: bool = False) -> list[Int64]:
    """The positions of each batch. The last may be smaller; ``join_single``: one of one image joins that before it."""
    starts = list(range(0, len(positions), size))
    if join_single and len(starts) > 1 and len(positions) - starts[-1] == 1:
        starts.pop()
    return np.split(positions, starts[1:]) if starts else []


def batches(
    images: ImageSet, pieces: Sequence[Int64], key: int | None, workers: int, pinned: bool = False
) -> Iterator[Tensor]:
    """The images at the positions of each piece, as uint8; with a key, their training views.

    ``pinned``: decode into memory from which a GPU can fetch by itself.
    """
    rows = [images.rows[piece] for piece in pieces]
    workers = 0 if images.source.in_memory else min(workers, len(rows))
    if workers == 0:
        yield from (view(images.source, some, key) for some in rows)
        return
    loader = DataLoader(
        _Reads(images.source, rows, key),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4,
        pin_memory=pinned,
        # Its own generator: otherwise the loader draws a seed from torch's global one.
        generator=torch.Generator(),
    )
    for read in loader:
        if isinstance(read, UserError):
            raise read
        yield read
