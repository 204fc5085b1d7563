"""Samplers: how often each image and each class is seen in an epoch, and in which order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drcil.streams.samplers import class_balanced, repeated, shuffle

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def labelled(counts: list[int], key: int) -> np.ndarray:
    """So many images of each class, mixed; labels have gaps, as those of new classes may."""
    labels = np.repeat(3 * np.arange(len(counts)), counts)
    return np.random.default_rng(key).permutation(labels)


@given(COUNTS, st.integers(0, 2**32), st.integers(1, 5))
def test_class_balanced_sampling_gives_every_class_its_turn_of_consecutive_images(
    counts: list[int], key: int, run: int
) -> None:
    labels = labelled(counts, key)
    taken = class_balanced(labels, key, run)
    assert len(taken) == len(labels), "an epoch is as long as there are images"
    turns = [labels[taken[start : start + run]] for start in range(0, len(taken), run)]
    assert all(len(set(turn)) == 1 for turn in turns)
    order = [int(turn[0]) for turn in turns]
    rounds = [order[start : start + len(counts)] for start in range(0, len(order), len(counts))]
    assert all(len(set(one)) == len(one) for one in rounds), "no class twice before all had their turn"
    often = np.bincount(labels[taken], minlength=labels.max() + 1)[::3]
    assert often.max() - often.min() <= run


@given(COUNTS, st.integers(0, 2**32))
def test_class_balanced_sampling_uses_all_images_of_a_class_before_it_repeats_one(counts: list[int], key: int) -> None:
    labels = labelled(counts, key)
    taken = class_balanced(labels, key)
    for label in np.unique(labels):
        seen = taken[labels[taken] == label].tolist()
        there = int((labels == label).sum())
        for start in range(0, len(seen), there):
            cycle = seen[start : start + there]
            assert len(set(cycle)) == len(cycle)


def test_class_balanced_sampling_draws_anew_for_every_key_and_round() -> None:
    labels = labelled([40] * 8, 0)
    one, same, other = (class_balanced(labels, key) for key in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    order = labels[one][::4].reshape(-1, 8).tolist()
    assert any(first != second for first, second in pairwise(order))


@given(st.integers(1, 1000), st.integers(1, 4), st.integers(0, 2**32))
def test_repeated_sampling_takes_copies_of_a_part_of_the_images_one_after_the_other(
    images: int, repeats: int, key: int
) -> None:
    taken = repeated(np.zeros(images, dtype=np.int64), key, repeats)
    assert len(taken) == (images if images < 256 else images - images % 256)
    runs = [taken[start : start + repeats] for start in range(0, len(taken), repeats)]
    assert all(len(set(run)) == 1 for run in runs), "copies of an image follow one another"
    assert len({int(run[0]) for run in runs}) == len(runs), "no image is chosen twice"
    assert 0 <= taken.min() <= taken.max() < images


def test_repeated_sampling_draws_another_third_for_every_key() -> None:
    labels = np.zeros(5000, dtype=np.int64)
    one, same, other = (repeated(labels, key) for key in (1, 1, 2))
    assert len(one) == 4864 and len(set(one)) == 1622
    assert np.array_equal(one, same)
    both = len(set(one) & set(other)) / len(set(one))
    assert 0.27 < both < 0.38, "thirds of two epochs share a third"


def test_an_epoch_of_nothing_is_empty() -> None:
    nothing = np.empty(0, dtype=np.int64)
    for sampler in (shuffle, repeated, class_balanced):
        assert sampler(nothing, 0).tolist() == []
