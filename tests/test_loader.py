"""Batches: cut from an order, and images of either kind cropped where training views are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.data.imageset import ArraySource, ChainSource, ImageSet, Int64, Source
from drcil.train.loader import batches, cut, view

SIZE = 16


class Files(Source):
    """Images on disk: black, and white as a training view."""

    size = SIZE

    def __len__(self) -> int:
        return 5

    def read(self, rows: Int64, key: int | None = None) -> Tensor:
        return torch.full((len(rows), 3, SIZE, SIZE), 0 if key is None else 255, dtype=torch.uint8)

    def describe(self) -> dict[str, Any]:
        return {"kind": "test"}


NOISE = torch.randint(1, 255, (5, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
MIXED = ChainSource([Files(), ArraySource(NOISE)])


@given(st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_every_position_is_in_one_batch_in_order(count: int, size: int, join_single: bool) -> None:
    positions = np.arange(count, dtype=np.int64)[::-1].copy()
    pieces = cut(positions, size, join_single)
    assert np.array_equal(np.concatenate([positions[:0], *pieces]), positions)
    assert all(len(piece) == size for piece in pieces[:-1])
    single = count % size == 1 % size and count > size
    assert not pieces or len(pieces[-1]) == ((size + 1) if join_single and single else (count - 1) % size + 1)


def test_images_in_memory_are_cropped_where_files_are() -> None:
    """Files crop themselves; of arrays that came later, or exemplars kept as pixels, the loader does."""
    rows = np.array([7, 0, 5, 9, 3])
    plain, cropped = view(MIXED, rows, None), view(MIXED, rows, key=3)
    from_files = torch.tensor([False, True, False, False, True])
    assert (plain[from_files] == 0).all() and (cropped[from_files] == 255).all()
    assert torch.equal(plain[~from_files], NOISE[[2, 0, 4]])
    views = torch.stack([view(MIXED, rows, key) for key in range(5)])[:, ~from_files]
    changed = (views != plain[~from_files]).flatten(2).any(dim=2)
    # A crop may happen to be the whole image, but not often.
    assert changed.any(dim=0).all() and changed.float().mean() > 0.7
    assert torch.equal(view(MIXED, rows, key=3), cropped)
    assert not torch.equal(view(MIXED, rows, key=4), cropped)
    assert not torch.equal(view(ArraySource(NOISE), np.arange(5), key=3), NOISE)


def test_a_crop_does_not_depend_on_who_reads_and_leaves_the_source_as_it_was() -> None:
    before = NOISE.clone()
    images = ImageSet(MIXED, np.arange(10), np.zeros(10, dtype=np.int64))
    pieces = cut(np.array([9, 1, 6, 4, 5, 0, 8]), 3)
    alone, helped = (list(batches(images, pieces, 3, workers)) for workers in (0, 2))
    assert [len(batch) for batch in alone] == [3, 3, 1]
    assert all(torch.equal(one, other) for one, other in zip(alone, helped, strict=True))
    assert torch.equal(NOISE, before)
