"""From the predictions after each task to the numbers that are reported. Accuracies are in percent.

A metric is a function of the history of a run. All that are registered are computed for every readout, ours and
others', and stored by name in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .data.sources.imageset import Int64
from .errors import UserError
from .registry import Registry


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
        return [_percent(hits[:, 0]) for hits in self.hits]

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


METRICS: Registry[Callable[[History], Any]] = Registry("metric")
"""Each gives a number, None where it has no meaning, or a list of such."""


def measure(history: History) -> dict[str, Any]:
    """All metrics by name, as JSON has them."""
    figures = {}
    for name, metric in METRICS.items():
        try:
            figures[name] = _as_json(metric(history))
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(f"metric '{name}' cannot be computed: {said}") from error
    return figures


@METRICS.register("curve")
def curve(history: History) -> list[float]:
    """Accuracy after each task on all classes seen, rounded to two decimals."""
    return _rounded(history.accuracies)


@METRICS.register("exact")
def exact(history: History) -> list[float]:
    """The curve, not rounded."""
    return history.accuracies


@METRICS.register("avg")
def avg(history: History) -> float:
    """Mean of the curve, its first value included. Over the rounded values, as published averages are."""
    return _mean(curve(history))


@METRICS.register("last")
def last(history: History) -> float:
    """The curve's last value."""
    return curve(history)[-1]


@METRICS.register("top5")
def top5(history: History) -> list[float]:
    """As curve; an image counts if its class is among the five best. 100 while there are only five."""
    both = zip(history.hits, history.seen, strict=True)
    return _rounded([100.0 if seen <= 5 else _percent(hits[:, :5].sum(axis=1) > 0) for hits, seen in both])


@METRICS.register("top5_avg")
def top5_avg(history: History) -> float:
    """Mean of top5."""
    return _mean(top5(history))


@METRICS.register("matrix")
def matrix(history: History) -> list[list[float]]:
    """Accuracy after each task (a row) on each task so far, among all classes seen."""
    return history.matrix


@METRICS.register("task_curve")
def task_curve(history: History) -> list[float]:
    """Mean of each row of the matrix. A task counts the same however many classes it brought."""
    return [_mean(row) for row in history.matrix]


@METRICS.register("task_avg")
def task_avg(history: History) -> float:
    """Mean of task_curve, the measure of the long-tailed protocol."""
    return _mean(task_curve(history))


@METRICS.register("class_curve")
def class_curve(history: History) -> list[float]:
    """After each task, the mean of the accuracies on each class. A class counts the same however often it is tested."""
    return [float(np.nanmean(accuracies)) for accuracies in history.by_class]


@METRICS.register("class_avg")
def class_avg(history: History) -> float:
    """Mean of class_curve."""
    return _mean(class_curve(history))


@METRICS.register("many_shot")
def many_shot(history: History) -> float | None:
    """Mean over the classes of more than 100 training images, after the last task; None if there is none."""
    return _of_shots(history, 101, None)


@METRICS.register("medium_shot")
def medium_shot(history: History) -> float | None:
    """Mean over the classes of 20 to 100 training images, after the last task; None if there is none."""
    return _of_shots(history, 20, 100)


@METRICS.register("few_shot")
def few_shot(history: History) -> float | None:
    """Mean over the classes of fewer than 20 training images, after the last task; None if there is none."""
    return _of_shots(history, 0, 19)


@METRICS.register("forgetting")
def forgetting(history: History) -> float | None:
    """How far accuracy on earlier tasks has fallen from its best.

    mean over i < T of (max over t of A[t, i]) − A[T, i]; None for T = 1. The final accuracy is among the maxima, so
    that it is never negative.
    """
    *_, final = history.matrix
    best = [max(row[task] for row in history.matrix[task:]) for task in range(len(final) - 1)]
    return _mean([peak - end for peak, end in zip(best, final, strict=False)]) if best else None


@METRICS.register("backward_transfer")
def backward_transfer(history: History) -> float | None:
    """How accuracy on earlier tasks has changed since they were learnt.

    mean over i < T of A[T, i] − A[i, i]; None for T = 1. Negative where later tasks harmed earlier ones.
    """
    *_, final = history.matrix
    changes = [final[task] - history.matrix[task][task] for task in range(len(final) - 1)]
    return _mean(changes) if changes else None


CURVES = {
    "avg": "curve",
    "last": "curve",
    "task_avg": "task_curve",
    "class_avg": "class_curve",
    "top5_avg": "top5",
}
"""The metrics that sum up another, which has a value after each task."""


def require_figure(name: str) -> str:
    """The name of a metric that gives one number, by which methods can be compared."""
    metric = METRICS[name]
    history = History([TaskPrediction(np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64))], [1], [1])
    value = None
    with suppress(Exception):  # A metric of others may need more; what is wrong with it is told when it measures a run.
        value = metric(history)
    if isinstance(value, list | tuple | np.ndarray):
        raise UserError(f"metric '{name}' gives a list, not one number to compare by; choose another, such as 'avg'")
    return name


def _of_shots(history: History, least: int, most: int | None) -> float | None:
    """After the last task: the mean accuracy over the classes with so many training images."""
    if history.images is None:
        return None
    images, accuracies = np.asarray(history.images), history.by_class[-1]
    chosen = (images >= least) & (images <= (images.max() if most is None else most)) & ~np.isnan(accuracies)
    return float(accuracies[chosen].mean()) if chosen.any() else None


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


def _percent(correct: npt.NDArray[np.bool_]) -> float:
    return float(correct.sum() * 100 / len(correct))


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.around(values, decimals=2)]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _as_json(value: Any) -> Any:
    """Numbers, None and lists of such; of numpy, too."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_json(item) for item in value]
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(f"it gave {value!r}; a metric gives a finite number, None, or a list of such")
    return int(value) if isinstance(value, Integral) else float(value)
