"""Subsets, joins and copies of image sets move references, and every reference still shows its own image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.data.image_set import ArraySource, CropDraw, ImageSet, Int64, Source, empty_like
from drcil.data.loader import PictureCache
from drcil.data.source_refs import DatasetRef, LeafRef

SIZE = 4


def array(first: int, count: int, ref: LeafRef | None = None) -> ArraySource:
    """Distinct images: every pixel of image r is ``first + r``."""
    values = torch.arange(first, first + count, dtype=torch.uint8)
    return ArraySource(values[:, None, None, None].expand(-1, 1, SIZE, SIZE).clone(), ref)


def dataset(first: int, name: str) -> ArraySource:
    return array(first, 10, DatasetRef(name=name, split="train", size=SIZE))


def shown(images: ImageSet) -> list[int]:
    """The first pixel of each image."""
    pixels = images.read()
    assert pixels.shape == (len(images), 1, SIZE, SIZE)
    return pixels[:, 0, 0, 0].tolist()


def rows_of(source: Source, rows: list[int]) -> ImageSet:
    return ImageSet.of(source, np.array(rows, dtype=np.int64), np.array(rows, dtype=np.int64) % 3)


SOURCES = [array(0, 10), dataset(20, "one"), array(40, 10), dataset(60, "two")]
PIECES = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=6)


def joined(pieces: list[tuple[int, list[int]]]) -> tuple[ImageSet, list[int]]:
    images, expected = empty_like(rows_of(SOURCES[0], [])), []
    for which, rows in pieces:
        images = images.join(rows_of(SOURCES[which], rows))
        expected += [20 * which + row for row in rows]
    return images, expected


@given(PIECES)
def test_a_join_shows_the_images_of_both_in_order(pieces: list[tuple[int, list[int]]]) -> None:
    images, expected = joined(pieces)
    assert shown(images) == expected
    assert images.labels.tolist() == [value % 20 % 3 for value in expected]
    assert images.rows.tolist() == [value % 20 for value in expected], "rows are those of the source"
    assert len(set(images.ids.tolist())) == len(set(expected))
    assert len(images.sources) == max(1, len({which for which, rows in pieces if rows})), "each source once"


@given(PIECES, st.sets(st.integers(0, 3)))
def test_a_copy_shows_the_same_images_and_releases_the_sources(
    pieces: list[tuple[int, list[int]]], which: set[int]
) -> None:
    images, expected = joined(pieces)
    copy = images.copied_to_memory(lambda source: any(source is SOURCES[index] for index in which))
    assert shown(copy) == expected
    assert np.array_equal(copy.labels, images.labels)
    moved = [value for value in expected if value // 20 in which]
    fresh = [source for source in copy.sources if source not in SOURCES]
    assert [len(source) for source in fresh] == ([len(moved)] if moved else [])
    if moved:
        assert not any(source is SOURCES[index] for source in copy.sources for index in which)


def test_a_dataset_that_was_loaded_twice_is_one_source_and_equal_arrays_are_not() -> None:
    images = rows_of(SOURCES[1], [3, 1]).join(rows_of(dataset(20, "one"), [2]))
    assert len(images.sources) == 1 and images.rows.tolist() == [3, 1, 2]
    assert len(images.join(rows_of(SOURCES[3], [0])).sources) == 2
    assert shown(rows_of(array(10, 3), [0, 2]).join(rows_of(array(20, 3), [1]))) == [10, 12, 21]


def test_subsets_go_by_position_or_by_mask() -> None:
    images = rows_of(SOURCES[0], [5, 6, 7, 8])
    assert shown(images.subset([2, 0, 0])) == [7, 5, 5]
    assert shown(images.subset(images.labels == 2)) == [5, 8]
    assert images.counts(4).tolist() == [1, 1, 2, 0]
    assert shown(empty_like(images)) == shown(empty_like(images.join(rows_of(SOURCES[1], [0])))) == []


def test_images_of_other_shapes_are_refused() -> None:
    assert str(rows_of(SOURCES[0], [0]).shape) == "1 x 4 x 4"
    colour = ArraySource(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8))
    with pytest.raises(ValueError, match="different shapes"):
        rows_of(SOURCES[0], [0]).join(rows_of(colour, [0]))
    for pixels in (torch.zeros(2, 1, 4, 5, dtype=torch.uint8), torch.zeros(2, 1, 4, 4)):
        with pytest.raises(ValueError, match="pixels must be uint8"):
            ArraySource(pixels)
    with pytest.raises(ValueError, match="two equal lists"):
        ImageSet.of(SOURCES[0], np.arange(2), np.arange(3))


class Spy(Source):
    """A source on disk that records what it is asked for."""

    size, channels = SIZE, 1

    def __init__(self) -> None:
        self.requests: list[tuple[list[int], int, list[int]] | None] = []

    def __len__(self) -> int:
        return 10

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        self.requests.append(crops and (rows.tolist(), crops.key, crops.positions.tolist()))
        return torch.zeros(len(rows), 1, SIZE, SIZE, dtype=torch.uint8)


def test_rows_and_their_crops_go_to_the_source_they_belong_to() -> None:
    spy = Spy()
    images = rows_of(SOURCES[0], [3]).join(rows_of(spy, [2, 0]))
    assert not images.shape.in_memory
    images.read(np.array([1, 0, 2]), CropDraw(77, np.array([30, 31, 32])))
    assert spy.requests == [([2, 0], 77, [30, 32])]


def test_images_in_memory_can_be_moved_to_a_device_and_files_stay() -> None:
    device = torch.device("meta")
    images = rows_of(array(0, 2), [0, 1]).join(rows_of(array(2, 3), [2]))
    assert images.on(device).read(np.array([2, 0])).device == device
    mixed = images.join(rows_of(Spy(), [0]))
    assert mixed.on(device) is mixed
