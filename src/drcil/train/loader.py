"""Batches of an image set: gathered from memory, or decoded in worker processes. The order is the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.imageset import ImageSet, Int64, Source
from ..errors import UserError


class _Reads(Dataset[Tensor | UserError]):
    """Item i is the i-th batch; what it holds depends on its rows and the key alone, not on who reads it."""

    def __init__(self, source: Source, rows: Sequence[Int64], key: int | None) -> None:
        self.source, self.rows, self.key = source, rows, key

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor | UserError:
        try:
            return self.source.read(self.rows[index], self.key)
        except UserError as error:
            # Handed over rather than raised: the loader would wrap it in the traceback of the worker.
            return error


def batches(images: ImageSet, positions: Int64, size: int, key: int | None, workers: int) -> Iterator[Tensor]:
    """The images at these positions, ``size`` at a time, as uint8; the last batch may be smaller."""
    rows = [images.rows[positions[start : start + size]] for start in range(0, len(positions), size)]
    workers = 0 if images.source.in_memory else min(workers, len(rows))
    if workers == 0:
        yield from (images.source.read(some, key) for some in rows)
        return
    loader = DataLoader(
        _Reads(images.source, rows, key),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4,
        # Its own generator: otherwise the loader draws a seed from torch's global one.
        generator=torch.Generator(),
    )
    for read in loader:
        if isinstance(read, UserError):
            raise read
        yield read
