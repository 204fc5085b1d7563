"""Accuracy on classes of many, of a medium number of, and of few training images (Liu et al. 2019)."""

from __future__ import annotations

import numpy as np

from .history import History
from .table import METRICS

MANY, MEDIUM, FEW = (101, None), (20, 100), (0, 19)
"""The least and the most training images of a class."""


@METRICS.register("many_shot")
def many_shot(history: History) -> float | None:
    """Mean over the classes of more than 100 training images, after the last task; none without such classes."""
    return many_curve(history)[-1]


@METRICS.register("medium_shot")
def medium_shot(history: History) -> float | None:
    """Mean over the classes of 20 to 100 training images, after the last task; none without such classes."""
    return medium_curve(history)[-1]


@METRICS.register("few_shot")
def few_shot(history: History) -> float | None:
    """Mean over the classes of fewer than 20 training images, after the last task; none without such classes."""
    return few_curve(history)[-1]


@METRICS.register("many_curve")
def many_curve(history: History) -> list[float | None]:
    """As many_shot, after each task."""
    return _of_shots(history, *MANY)


@METRICS.register("medium_curve")
def medium_curve(history: History) -> list[float | None]:
    """As medium_shot, after each task."""
    return _of_shots(history, *MEDIUM)


@METRICS.register("few_curve")
def few_curve(history: History) -> list[float | None]:
    """As few_shot, after each task."""
    return _of_shots(history, *FEW)


def _of_shots(history: History, least: int, most: int | None) -> list[float | None]:
    """After each task: the mean accuracy over the classes seen with so many training images."""
    if history.images is None:
        return [None] * len(history.records)
    means: list[float | None] = []
    for seen, accuracies in zip(history.seen, history.by_class, strict=True):
        images = np.asarray(history.images[:seen])
        chosen = (images >= least) & (most is None or images <= most) & ~np.isnan(accuracies)
        means.append(float(accuracies[chosen].mean()) if chosen.any() else None)
    return means
