"""Batches: cut from an order, and images of either kind cropped where training views are asked for."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from drcil.data.file_source import FileList, FileSource
from drcil.data.image_set import ArraySource, CropDraw, ImageSet, Int64, Source
from drcil.data.loader import BatchReader, PictureCache, batches_per_chunk, split_batches
from drcil.errors import UserError

SIZE = 16


class Files(Source):
    """Images on disk: black, and white as a training view."""

    size = SIZE

    def __len__(self) -> int:
        return 5

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        return torch.full((len(rows), 3, SIZE, SIZE), 0 if crops is None else 255, dtype=torch.uint8)


NOISE = torch.randint(1, 255, (5, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
MIXED = ImageSet.unlabelled(Files()).join(ImageSet.unlabelled(ArraySource(NOISE)))


@given(st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_every_position_is_in_one_batch_in_order(count: int, size: int, join_single: bool) -> None:
    positions = np.arange(count, dtype=np.int64)[::-1].copy()
    pieces = split_batches(positions, size, join_single)
    assert np.array_equal(np.concatenate([positions[:0], *pieces]), positions)
    assert all(len(piece) == size for piece in pieces[:-1])
    single = count % size == 1 % size and count > size
    assert not pieces or len(pieces[-1]) == ((size + 1) if join_single and single else (count - 1) % size + 1)


def test_images_in_memory_are_cropped_where_files_are() -> None:
    """A set has both where arrays come after files, or exemplars are stored as pixels."""
    rows = np.array([7, 0, 5, 9, 3])
    positions = np.arange(5)
    plain, cropped = MIXED.read(rows), MIXED.read(rows, CropDraw(3, positions))
    from_files = torch.tensor([False, True, False, False, True])
    assert (plain[from_files] == 0).all() and (cropped[from_files] == 255).all()
    assert torch.equal(plain[~from_files], NOISE[[2, 0, 4]])
    views = torch.stack([MIXED.read(rows, CropDraw(key, positions)) for key in range(5)])[:, ~from_files]
    changed = (views != plain[~from_files]).flatten(2).any(dim=2)
    # A crop may happen to be the whole image, but not often.
    assert changed.any(dim=0).all() and changed.float().mean() > 0.7
    assert torch.equal(MIXED.read(rows, CropDraw(3, positions)), cropped)
    assert not torch.equal(MIXED.read(rows, CropDraw(4, positions)), cropped)
    assert not torch.equal(ArraySource(NOISE).read(np.arange(5), CropDraw(3, positions)), NOISE)


def test_where_no_training_view_is_wanted_the_test_view_is_shown(tmp_path: Path) -> None:
    """Of files and of images in memory, by their places in the epoch."""
    paths = [str(tmp_path / f"{number}.png") for number in range(4)]
    for number, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(number).integers(256, size=(20, 24, 3), dtype=np.uint8)).save(path)
    files = ImageSet.unlabelled(FileSource(FileList.of_paths(paths), SIZE))
    images = files.join(ImageSet.unlabelled(ArraySource(NOISE))).subset([6, 0, 3, 8, 1])
    wanted = np.array([True, True, False, False, False, True, True])
    pieces, places = [np.arange(2), np.arange(2, 5)], [np.array([5, 6]), np.array([2, 0, 4])]
    read, every, none = (
        torch.cat(list(BatchReader(images, 0).read(pieces, key, places, chosen)))
        for key, chosen in [(3, wanted), (3, None), (None, None)]
    )
    taken = torch.tensor([True, True, False, True, False])
    assert torch.equal(read[taken], every[taken]) and torch.equal(read[~taken], none[~taken])
    assert (every != none).flatten(1).any(dim=1).all()


def test_a_crop_does_not_depend_on_who_reads_and_leaves_the_source_as_it_was() -> None:
    before = NOISE.clone()
    pieces = split_batches(np.array([9, 1, 6, 4, 5, 0, 8]), 3)
    alone, helped = (list(BatchReader(MIXED, workers).read(pieces, 3)) for workers in (0, 2))
    assert [len(batch) for batch in alone] == [3, 3, 1]
    assert all(torch.equal(one, other) for one, other in zip(alone, helped, strict=True))
    assert torch.equal(NOISE, before)


class Tellers(Files):
    """Images whose pixels tell which process read them, in two bytes."""

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        if 4 in rows:
            raise UserError("image 4 cannot be read")
        process = torch.tensor((*divmod(os.getpid() % 2**16, 256), 0), dtype=torch.uint8)
        return process.view(1, 3, 1, 1).expand(len(rows), 3, SIZE, SIZE).clone()


def test_workers_stay_from_epoch_to_epoch_and_errors_come_through() -> None:
    reader = BatchReader(ImageSet.unlabelled(Tellers()), workers=2)

    def processes(reader: BatchReader, pieces: list[Int64]) -> set[tuple[int, int]]:
        return {(int(batch[0, 0, 0, 0]), int(batch[0, 1, 0, 0])) for batch in reader.read(pieces)}

    one = processes(reader, split_batches(np.arange(1), 1))
    assert len(one) == 1
    first, second = processes(reader, split_batches(np.arange(4), 1)), processes(reader, split_batches(np.arange(4), 1))
    assert len(first) == 2 and first == second
    assert divmod(os.getpid() % 2**16, 256) not in first
    with pytest.raises(UserError, match=r"^image 4 cannot be read$"):
        processes(reader, split_batches(np.array([0, 4, 1, 2, 3]), 1))
    assert processes(reader, split_batches(np.arange(4), 1)) == first, (
        "an epoch that was left early does not disturb the next"
    )
    assert list(reader.read([])) == []
    gone = weakref.ref(reader)
    del reader
    assert gone() is None, "an error that is over holds on to nothing, or the next collection waits for workers"


@given(st.integers(1, 4000), st.sampled_from([1, 3]), st.sampled_from([8, 16, 32, 64, 224]))
def test_batches_are_read_together_up_to_a_bound(size: int, channels: int, pixels: int) -> None:
    source = ArraySource(torch.empty(0, channels, pixels, pixels, dtype=torch.uint8))
    together = batches_per_chunk(source.shape, size)
    assert together == 1 or together * size * channels * pixels**2 <= 3 * 2**20
    assert (together + 1) * size * channels * pixels**2 > 3 * 2**20
