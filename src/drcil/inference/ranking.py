"""The best classes of each image."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Ranking(NamedTuple):
    """For every image the best classes, best first, and their scores: two (N, k) tensors on the CPU."""

    classes: Tensor
    scores: Tensor


def best_classes(scores: Tensor, count: int) -> Ranking:
    """The ``count`` best classes (all, if there are fewer) by scores (N, classes)."""
    top = scores.topk(min(count, scores.shape[1]), dim=1)
    return Ranking(top.indices, top.values)
