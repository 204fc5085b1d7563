"""What a readout answered after each task, and what several metrics compute from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.sources.imageset import Int64
from ..errors import UserError


class TaskPrediction(NamedTuple):
    """What a readout answered after one task, for the test images of all classes seen."""

    labels: Int64
    """The true labels, (n,)."""
    top: Int64
    """The best classes of each image, best first, (n, k)."""


@dataclass(frozen=True)
class History:
    """What a readout answered after each task learnt so far. What several metrics need is computed once."""

    records: Sequence[TaskPrediction]
    sizes: Sequence[int]
    """The number of classes that each task of the stream brings, those not yet learnt included."""
    images: Sequence[int] | None = None
    """How many images each class learnt so far was trained with when it was new; None: that is not known."""

    def __post_init__(self) -> None:
        if not 0 < len(self.records) <= len(self.sizes):
            raise ValueError(f"{len(self.records)} records do not fit a stream of {len(self.sizes)} tasks")
        for record, seen in zip(self.records, self.seen, strict=True):
            _check(record, seen)
        if self.images is not None and len(self.images) != self.seen[-1]:
            raise ValueError(f"the images of {len(self.images)} classes do not fit {self.seen[-1]} classes seen")

    @cached_property
    def seen(self) -> list[int]:
        """The number of classes seen after each task."""
        return [sum(self.sizes[:learnt]) for learnt in range(1, len(self.records) + 1)]

    @cached_property
    def hits(self) -> list[npt.NDArray[np.bool_]]:
        """After each task, for each image: which of its best classes is the true one, (n, k)."""
        return [record.top == record.labels[:, None] for record in self.records]

    @cached_property
    def accuracies(self) -> list[float]:
        """After each task, over all test images of the classes seen."""
        return [percent(hits[:, 0]) for hits in self.hits]

    @cached_property
    def matrix(self) -> list[list[float]]:
        """``matrix[t][i]``: after task t, on the test images of task i ≤ t, among all classes seen."""
        return [
            _by_task(hits[:, 0], record.labels, self.sizes[:learnt])
            for learnt, (hits, record) in enumerate(zip(self.hits, self.records, strict=True), start=1)
        ]

    @cached_property
    def by_class(self) -> list[npt.NDArray[np.float64]]:
        """After each task, the accuracy on each class that has test images; NaN on one that has none."""
        accuracies = []
        for hits, record, seen in zip(self.hits, self.records, self.seen, strict=True):
            images = np.bincount(record.labels, minlength=seen)
            correct = np.bincount(record.labels, weights=hits[:, 0], minlength=seen)
            accuracies.append(np.where(images > 0, correct * 100 / np.maximum(images, 1), np.nan))
        return accuracies


def _by_task(correct: npt.NDArray[np.bool_], labels: Int64, sizes: Sequence[int]) -> list[float]:
    """Accuracy on the test images of each task."""
    task = np.searchsorted(np.cumsum(sizes), labels, side="right")
    images = np.bincount(task, minlength=len(sizes))
    if not images.all():
        raise UserError(f"task {int(np.argmin(images)) + 1} has no test images, so its accuracy cannot be measured")
    accuracies: list[float] = (np.bincount(task, weights=correct, minlength=len(sizes)) * 100 / images).tolist()
    return accuracies


def _check(record: TaskPrediction, seen: int) -> None:
    """Predictions must be for classes that have been seen, and deep enough for the top five."""
    images, depth = record.top.shape
    if not len(record.labels) == images > 0:
        raise ValueError(f"{len(record.labels)} labels and {images} predictions are not one per test image")
    if record.labels.min() < 0 or record.labels.max() >= seen:
        raise ValueError(f"labels {record.labels.min()} to {record.labels.max()} are not among the {seen} classes seen")
    if depth < min(5, seen):
        raise ValueError(f"{depth} ranked classes per image are too few: {min(5, seen)} are needed")


def percent(correct: npt.NDArray[np.bool_]) -> float:
    """The share that is true."""
    return float(correct.sum() * 100 / len(correct))
