"""Samplers: which images an epoch takes, in which order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..data.image_set import Int64
from ..seeding import numpy_generator

Sampler = Callable[[Int64, int], Int64]
"""(labels, key) → positions of one epoch, in order."""


def shuffle(labels: Int64, key: int) -> Int64:
    """Every image once, in random order."""
    return numpy_generator(key).permutation(len(labels)).astype(np.int64)


def repeated(labels: Int64, key: int, repeats: int = 3, multiple: int = 256) -> Int64:
    """Repeated augmentation: the first of the shuffled images, each ``repeats`` times in a row.

    An epoch is as long as there are images, cut off to a multiple of ``multiple`` unless nothing would be left of it;
    so it has about one image in ``repeats``, and others in the next epoch. The last of them may have fewer copies.
    Every copy has a separate position in the epoch, and so a separate augmentation.
    """
    length = len(labels) // multiple * multiple or len(labels)
    return shuffle(labels, key).repeat(repeats)[:length]


def class_balanced(labels: Int64, key: int, run: int = 4) -> Int64:
    """As many positions as there are images, every class equally often: classes take turns of ``run`` images.

    All classes have their turn, in random order, before the next round begins in another order. Within its turns a
    class goes through its images in random order, and begins again, in another, when they are used up.
    """
    draws = numpy_generator(key)
    classes, class_of = np.unique(labels, return_inverse=True)
    turns = _rounds(draws, np.arange(len(classes)), -(-len(labels) // run)).repeat(run)
    result = np.empty(len(turns), dtype=np.int64)
    for number in range(len(classes)):
        positions = np.flatnonzero(turns == number)
        result[positions] = _rounds(draws, np.flatnonzero(class_of == number), len(positions))
    return result[: len(labels)]


def _rounds(draws: np.random.Generator, items: Int64, length: int) -> Int64:
    """``length`` items: all in random order, then all in another random order, and so on."""
    rounds = -(-length // max(1, len(items)))
    return draws.permuted(np.tile(items, (rounds, 1)), axis=1).ravel()[:length]
