"""Samplers: which images an epoch takes, in which order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..data.sources.imageset import Int64
from ..keys import numpy_generator

Sampler = Callable[[Int64, int], Int64]
"""(labels, key) → positions of one epoch, in order."""


def shuffle(labels: Int64, key: int) -> Int64:
    """Every image once, in random order."""
    return numpy_generator(key).permutation(len(labels)).astype(np.int64)
