"""Accuracy: over images, over tasks, over classes, and among the five best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .history import History, percent
from .table import METRICS


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
    return mean(curve(history))


@METRICS.register("last")
def last(history: History) -> float:
    """The curve's last value."""
    return curve(history)[-1]


@METRICS.register("top5")
def top5(history: History) -> list[float]:
    """As curve; an image counts if its class is among the five best. 100 while there are only five."""
    both = zip(history.hits, history.seen, strict=True)
    return _rounded([100.0 if seen <= 5 else percent(hits[:, :5].sum(axis=1) > 0) for hits, seen in both])


@METRICS.register("top5_avg")
def top5_avg(history: History) -> float:
    """Mean of top5."""
    return mean(top5(history))


@METRICS.register("matrix")
def matrix(history: History) -> list[list[float]]:
    """Accuracy after each task (a row) on each task so far, among all classes seen."""
    return history.matrix


@METRICS.register("task_curve")
def task_curve(history: History) -> list[float]:
    """Mean of each row of the matrix. A task counts the same however many classes it brought."""
    return [mean(row) for row in history.matrix]


@METRICS.register("task_avg")
def task_avg(history: History) -> float:
    """Mean of task_curve, the measure of the long-tailed protocol."""
    return mean(task_curve(history))


@METRICS.register("class_curve")
def class_curve(history: History) -> list[float]:
    """After each task, the mean of the accuracies on each class. A class counts the same however often it is tested."""
    return [float(np.nanmean(accuracies)) for accuracies in history.by_class]


@METRICS.register("class_avg")
def class_avg(history: History) -> float:
    """Mean of class_curve."""
    return mean(class_curve(history))


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.around(values, decimals=2)]


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
