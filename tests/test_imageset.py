"""Image sets: subsets, joins and copies move references, and every reference still shows its own image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.data.sources.imageset import (
    ArraySource,
    ChainSource,
    Draw,
    ImageSet,
    ImageShape,
    Source,
    copied,
    empty_like,
    same,
)

SIZE = 4


def array(first: int, count: int, **description: Any) -> ArraySource:
    """Images that can be told apart: every pixel of image r is ``first + r``."""
    values = torch.arange(first, first + count, dtype=torch.uint8)
    return ArraySource(values[:, None, None, None].expand(-1, 1, SIZE, SIZE).clone(), description or None)


def dataset(first: int, count: int, name: str) -> ArraySource:
    return array(first, count, kind="dataset", name=name)


def shown(images: ImageSet) -> list[int]:
    """Which images a set really shows."""
    pixels = images.source.read(images.rows)
    assert pixels.shape == (len(images), 1, SIZE, SIZE)
    return pixels[:, 0, 0, 0].tolist()


def chosen(source: Source, rows: list[int]) -> ImageSet:
    return ImageSet(source, np.array(rows, dtype=np.int64), np.array(rows, dtype=np.int64) % 3)


SOURCES = [array(0, 10), dataset(20, 10, "one"), array(40, 10), dataset(60, 10, "two")]
PIECES = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=6)


def joined(pieces: list[tuple[int, list[int]]]) -> tuple[ImageSet, list[int]]:
    images, expected = empty_like(chosen(SOURCES[0], [])), []
    for which, rows in pieces:
        images = images.join(chosen(SOURCES[which], rows))
        expected += [20 * which + row for row in rows]
    return images, expected


@given(PIECES)
def test_a_join_shows_the_images_of_both_in_order(pieces: list[tuple[int, list[int]]]) -> None:
    images, expected = joined(pieces)
    assert shown(images) == expected
    assert images.labels.tolist() == [value % 20 % 3 for value in expected]


@given(PIECES)
def test_each_source_is_chained_once(pieces: list[tuple[int, list[int]]]) -> None:
    images, _ = joined(pieces)
    used = {which for which, rows in pieces if rows}
    if len(used) > 1:
        assert isinstance(images.source, ChainSource)
        assert len(images.source.parts) == len(used)
    else:
        assert not isinstance(images.source, ChainSource)


@given(PIECES, st.sets(st.integers(0, 3)))
def test_a_copy_shows_the_same_and_lets_go_of_the_rest(pieces: list[tuple[int, list[int]]], which: set[int]) -> None:
    images, expected = joined(pieces)
    copy = copied(images, lambda source: any(source is SOURCES[index] for index in which))
    assert shown(copy) == expected
    assert np.array_equal(copy.labels, images.labels)
    moved = [value for value in expected if value // 20 in which]
    parts = copy.source.parts if isinstance(copy.source, ChainSource) else (copy.source,)
    fresh = [part for part in parts if not any(part is source for source in SOURCES)]
    assert [len(part) for part in fresh] == ([len(moved)] if moved else [])
    if moved:
        assert not any(part is SOURCES[index] for part in parts for index in which)


def test_a_dataset_that_was_loaded_twice_is_one_source_and_equal_arrays_are_not() -> None:
    again = dataset(20, 10, "one")
    assert same(SOURCES[1], again)
    assert not same(SOURCES[1], SOURCES[3])
    assert not same(array(0, 3), array(0, 3))
    images = chosen(SOURCES[1], [3, 1]).join(chosen(again, [2]))
    assert not isinstance(images.source, ChainSource)
    assert images.rows.tolist() == [3, 1, 2]


def test_subsets_go_by_position_or_by_mask() -> None:
    images = chosen(SOURCES[0], [5, 6, 7, 8])
    assert shown(images.subset([2, 0, 0])) == [7, 5, 5]
    assert shown(images.subset(images.labels == 2)) == [5, 8]
    assert images.counts(4).tolist() == [1, 1, 2, 0]
    assert shown(empty_like(images)) == []


def test_sources_say_what_they_are_like() -> None:
    assert str(ImageShape.of(SOURCES[0])) == "1 x 4 x 4"
    assert SOURCES[0].embedded
    assert not SOURCES[1].embedded
    with pytest.raises(ValueError, match="different image shapes"):
        ChainSource([SOURCES[0], ArraySource(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8))])
    for pixels in (torch.zeros(2, 1, 4, 5, dtype=torch.uint8), torch.zeros(2, 1, 4, 4)):
        with pytest.raises(ValueError, match="pixels must be uint8"):
            ArraySource(pixels)
    with pytest.raises(ValueError, match="two equal lists"):
        ImageSet(SOURCES[0], np.arange(2), np.arange(3))


class Spy(Source):
    """A source on disk that notes what it was asked for."""

    size, channels = SIZE, 1

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int, list[int]] | None] = []

    def __len__(self) -> int:
        return 10

    def read(self, rows: Any, draw: Draw | None = None) -> Tensor:
        self.asked.append(draw and (rows.tolist(), draw.key, draw.positions.tolist()))
        return torch.zeros(len(rows), 1, SIZE, SIZE, dtype=torch.uint8)

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}


def test_a_chain_hands_rows_and_their_draws_to_the_part_they_belong_to() -> None:
    spy = Spy()
    chain = ChainSource([SOURCES[0], spy])
    assert not chain.in_memory
    chain.read(np.array([12, 3, 10]), Draw(77, np.array([30, 31, 32])))
    assert spy.asked == [([2, 0], 77, [30, 32])]
    assert chain.describe() == {"kind": "chain", "parts": [{"kind": "embedded"}, {"kind": "embedded"}]}


def test_chains_of_arrays_are_told_apart() -> None:
    """They say the same of themselves, but only a copy would do for either."""
    one, other = (ChainSource([array(first, 2), array(first + 2, 2)]) for first in (10, 20))
    assert one.describe() == other.describe()
    assert one.embedded and not same(one, other)
    assert shown(chosen(one, [0, 3]).join(chosen(other, [1, 2]))) == [10, 13, 21, 22]


def test_what_is_in_memory_can_be_moved_to_a_device_and_files_stay() -> None:
    nowhere = torch.device("meta")
    moved = ChainSource([array(0, 2), array(2, 3)]).on(nowhere)
    assert isinstance(moved, ChainSource)
    assert moved.read(np.array([4, 0])).device == nowhere
    mixed = ChainSource([array(0, 2), Spy()])
    assert mixed.on(nowhere) is mixed
