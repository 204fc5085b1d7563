"""Metrics: functions of the predictions after each task.

All registered metrics, including those of plugins, are computed for every readout and stored by name in the result.
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

from .data.image_set import Int64
from .errors import UserError
from .registry import Registry


class TaskPrediction(NamedTuple):
    """Predictions of a readout after one task, for the test images of all classes so far."""

    labels: Int64
    """The true labels, (n,)."""
    top: Int64
    """The highest-ranked classes of each image, best first, (n, k)."""


@dataclass(frozen=True)
class History:
    """Predictions of a readout after each task so far. Values that several metrics need are computed once."""

    records: Sequence[TaskPrediction]
    sizes: Sequence[int]
    """The number of new classes of each task of the stream, including later tasks."""
    images: Sequence[int] | None = None
    """The number of training images of each class so far, when it was new; None: unknown."""

    def __post_init__(self) -> None:
        if not 0 < len(self.records) <= len(self.sizes):
            raise ValueError(f"{len(self.records)} records do not fit a stream of {len(self.sizes)} tasks")
        for record, classes in zip(self.records, self.class_counts, strict=True):
            _check(record, classes)
        if self.images is not None and len(self.images) != self.class_counts[-1]:
            raise ValueError(f"the images of {len(self.images)} classes do not fit {self.class_counts[-1]} classes")

    @cached_property
    def class_counts(self) -> list[int]:
        """The number of classes after each task."""
        return [sum(self.sizes[:learnt]) for learnt in range(1, len(self.records) + 1)]

    @cached_property
    def hits(self) -> list[npt.NDArray[np.bool_]]:
        """After each task, for each image: which of its ranked classes is the true one, (n, k)."""
        return [record.top == record.labels[:, None] for record in self.records]

    @cached_property
    def accuracies(self) -> list[float]:
        """Accuracy after each task over all test images."""
        return [percent(hits[:, 0]) for hits in self.hits]

    @cached_property
    def matrix(self) -> list[list[float]]:
        """``matrix[t][i]``: accuracy after task t on the test images of task i ≤ t, among all classes so far."""
        return [
            _by_task(hits[:, 0], record.labels, self.sizes[:learnt])
            for learnt, (hits, record) in enumerate(zip(self.hits, self.records, strict=True), start=1)
        ]

    @cached_property
    def by_class(self) -> list[npt.NDArray[np.float64]]:
        """Accuracy on each class after each task; NaN for a class without test images."""
        accuracies = []
        for hits, record, classes in zip(self.hits, self.records, self.class_counts, strict=True):
            images = np.bincount(record.labels, minlength=classes)
            correct = np.bincount(record.labels, weights=hits[:, 0], minlength=classes)
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


def _check(record: TaskPrediction, classes: int) -> None:
    """Require labels of existing classes and enough ranked classes for the top five."""
    images, depth = record.top.shape
    if not len(record.labels) == images > 0:
        raise ValueError(f"{len(record.labels)} labels and {images} predictions are not one per test image")
    if record.labels.min() < 0 or record.labels.max() >= classes:
        raise ValueError(f"labels {record.labels.min()} to {record.labels.max()} are not among the {classes} classes")
    if depth < min(5, classes):
        raise ValueError(f"{depth} ranked classes per image are too few: {min(5, classes)} are needed")


def percent(correct: npt.NDArray[np.bool_]) -> float:
    """The share of true values, in percent."""
    return float(correct.sum() * 100 / len(correct))


METRICS: Registry[Callable[[History], Any]] = Registry("metric", "drcil.metrics")
"""Each returns a number, None where it is undefined, or a list of these."""


CURVES = {
    "avg": "curve",
    "last": "curve",
    "task_avg": "task_curve",
    "class_avg": "class_curve",
    "top5_avg": "top5",
    "many_shot": "many_curve",
    "medium_shot": "medium_curve",
    "few_shot": "few_curve",
}
"""Metrics that summarise a curve, and the name of the curve."""


def measure(history: History) -> dict[str, Any]:
    """All metrics by name, as JSON values."""
    figures = {}
    for name, metric in METRICS.items():
        try:
            figures[name] = _as_json(metric(history))
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(f"metric '{name}' cannot be computed: {reason}") from error
    return figures


def require_figure(name: str) -> str:
    """``name``, if it is a metric that returns one number, by which methods can be compared."""
    metric = METRICS[name]
    history = History([TaskPrediction(np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64))], [1], [1])
    value = None
    # A metric of a plugin may need more data. Its errors are reported when it measures a run.
    with suppress(Exception):
        value = metric(history)
    if isinstance(value, list | tuple | np.ndarray):
        raise UserError(f"metric '{name}' returns a list, not one number; use another metric, such as 'avg'")
    return name


def _as_json(value: Any) -> Any:
    """Numbers, None and lists of these, also of numpy, as JSON values."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_json(item) for item in value]
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(f"it returned {value!r}; a metric returns a finite number, None, or a list of these")
    return int(value) if isinstance(value, Integral) else float(value)


__all__ = ["CURVES", "METRICS", "History", "TaskPrediction", "measure", "require_figure"]


@METRICS.register("curve")
def curve(history: History) -> list[float]:
    """Accuracy after each task over all classes so far."""
    return history.accuracies


@METRICS.register("avg")
def avg(history: History) -> float:
    """Mean of curve, including the first task."""
    return mean(curve(history))


@METRICS.register("last")
def last(history: History) -> float:
    """Last value of curve."""
    return curve(history)[-1]


@METRICS.register("top5")
def top5(history: History) -> list[float]:
    """Like curve, but an image counts if its class is among the five best; 100 with up to five classes."""
    pairs = zip(history.hits, history.class_counts, strict=True)
    return [100.0 if classes <= 5 else percent(hits[:, :5].sum(axis=1) > 0) for hits, classes in pairs]


@METRICS.register("top5_avg")
def top5_avg(history: History) -> float:
    """Mean of top5."""
    return mean(top5(history))


@METRICS.register("matrix")
def matrix(history: History) -> list[list[float]]:
    """Accuracy after each task (a row) on each task so far, among all classes so far."""
    return history.matrix


@METRICS.register("task_curve")
def task_curve(history: History) -> list[float]:
    """Mean of each row of matrix: every task has the same weight."""
    return [mean(row) for row in history.matrix]


@METRICS.register("task_avg")
def task_avg(history: History) -> float:
    """Mean of task_curve, the metric of the long-tailed protocol."""
    return mean(task_curve(history))


@METRICS.register("class_curve")
def class_curve(history: History) -> list[float]:
    """Mean accuracy over classes after each task: every class has the same weight."""
    return [float(np.nanmean(accuracies)) for accuracies in history.by_class]


@METRICS.register("class_avg")
def class_avg(history: History) -> float:
    """Mean of class_curve."""
    return mean(class_curve(history))


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


@METRICS.register("confusion")
def confusion(history: History) -> list[list[float]]:
    """Share of the test images of each task (a row) predicted as a class of each task, after the last task.

    The diagonal is the share predicted within the right task, including its wrong classes.
    """
    record, learnt = history.records[-1], len(history.records)
    ends = np.cumsum(history.sizes[:learnt])
    true, predicted = (np.searchsorted(ends, labels, side="right") for labels in (record.labels, record.top[:, 0]))
    images = np.bincount(true * learnt + predicted, minlength=learnt * learnt).reshape(learnt, learnt)
    shares: list[list[float]] = np.around(images * 100 / images.sum(axis=1, keepdims=True), decimals=2).tolist()
    return shares


@METRICS.register("forgetting")
def forgetting(history: History) -> float | None:
    """How much the accuracy on earlier tasks has fallen since it was best.

    mean over i < T of (max over t of A[t, i]) − A[T, i]; None for T = 1. The maximum includes the final
    accuracy, so it is never negative.
    """
    *_, final = history.matrix
    best = [max(row[task] for row in history.matrix[task:]) for task in range(len(final) - 1)]
    return mean([peak - end for peak, end in zip(best, final, strict=False)]) if best else None


@METRICS.register("backward_transfer")
def backward_transfer(history: History) -> float | None:
    """How the accuracy on earlier tasks has changed since they were learnt.

    mean over i < T of A[T, i] − A[i, i]; None for T = 1. Negative if later tasks harmed earlier ones.
    """
    *_, final = history.matrix
    changes = [final[task] - history.matrix[task][task] for task in range(len(final) - 1)]
    return mean(changes) if changes else None


MANY, MEDIUM, FEW = (101, None), (20, 100), (0, 19)
"""Smallest and largest number of training images of a class."""


@METRICS.register("many_shot")
def many_shot(history: History) -> float | None:
    """Mean accuracy after the last task over classes with more than 100 training images."""
    return many_curve(history)[-1]


@METRICS.register("medium_shot")
def medium_shot(history: History) -> float | None:
    """Mean accuracy after the last task over classes with 20 to 100 training images."""
    return medium_curve(history)[-1]


@METRICS.register("few_shot")
def few_shot(history: History) -> float | None:
    """Mean accuracy after the last task over classes with fewer than 20 training images."""
    return few_curve(history)[-1]


@METRICS.register("many_curve")
def many_curve(history: History) -> list[float | None]:
    """many_shot after each task."""
    return _shot_curve(history, *MANY)


@METRICS.register("medium_curve")
def medium_curve(history: History) -> list[float | None]:
    """medium_shot after each task."""
    return _shot_curve(history, *MEDIUM)


@METRICS.register("few_curve")
def few_curve(history: History) -> list[float | None]:
    """few_shot after each task."""
    return _shot_curve(history, *FEW)


def _shot_curve(history: History, least: int, most: int | None) -> list[float | None]:
    """Mean accuracy after each task over the classes with ``least`` to ``most`` training images; None without any."""
    if history.images is None:
        return [None] * len(history.records)
    means: list[float | None] = []
    for classes, accuracies in zip(history.class_counts, history.by_class, strict=True):
        images = np.asarray(history.images[:classes])
        selected = (images >= least) & (most is None or images <= most) & ~np.isnan(accuracies)
        means.append(float(accuracies[selected].mean()) if selected.any() else None)
    return means
