"""From the predictions after each task to the numbers that are reported. Accuracies are in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .data.sources.imageset import Int64
from .errors import UserError


class TaskPrediction(NamedTuple):
    """What a readout answered after one task, for the test images of all classes seen."""

    labels: Int64
    """The true labels, (n,)."""
    top: Int64
    """The best classes of each image, best first, (n, k)."""


@dataclass(frozen=True)
class Metrics:
    """The measures of one run; a run that is not finished is measured as far as it went."""

    curve: tuple[float, ...]
    """Accuracy after each task over all test images of the classes seen, rounded to two decimals."""
    exact: tuple[float, ...]
    """The same, not rounded."""
    avg: float
    """Mean of the curve, its first value included. Over the rounded values, as published averages are."""
    last: float
    """The curve's last value."""
    top5: tuple[float, ...]
    """As ``curve``, where an image counts if its class is among the five best; 100 while there are only five."""
    top5_avg: float
    matrix: tuple[tuple[float, ...], ...]
    """``matrix[t][i]``: accuracy after task t on the test images of task i ≤ t, among all classes seen."""
    task_curve: tuple[float, ...]
    """Unweighted mean of each row of the matrix: a task counts the same however many classes it brought."""
    task_avg: float
    """Mean of ``task_curve``: the measure of the long-tailed protocol."""
    forgetting: float | None
    """Mean over all tasks but the last of the best accuracy ever minus the final one; None with one task."""
    backward_transfer: float | None
    """Mean over all tasks but the last of the final accuracy minus the one just after learning; None with one task."""

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON would have it."""
        return {name: _listed(value) for name, value in asdict(self).items()}


def measure(records: Sequence[TaskPrediction], sizes: Sequence[int]) -> Metrics:
    """The metrics of the tasks recorded so far, where task i of the stream brings ``sizes[i]`` classes."""
    if not 0 < len(records) <= len(sizes):
        raise ValueError(f"{len(records)} records do not fit a stream of {len(sizes)} tasks")
    exact, top5 = [], []
    matrix: list[tuple[float, ...]] = []
    for learnt, record in enumerate(records, start=1):
        seen = sum(sizes[:learnt])
        _check(record, seen)
        hits = record.top == record.labels[:, None]
        exact.append(_percent(hits[:, 0]))
        top5.append(100.0 if seen <= 5 else _percent(hits[:, :5].any(axis=1)))
        matrix.append(_by_task(hits[:, 0], record.labels, sizes[:learnt]))
    curve, top5_curve = _rounded(exact), _rounded(top5)
    task_curve = tuple(float(np.mean(row)) for row in matrix)
    return Metrics(
        curve=curve,
        exact=tuple(exact),
        avg=float(np.mean(curve)),
        last=curve[-1],
        top5=top5_curve,
        top5_avg=float(np.mean(top5_curve)),
        matrix=tuple(matrix),
        task_curve=task_curve,
        task_avg=float(np.mean(task_curve)),
        forgetting=forgetting(matrix),
        backward_transfer=backward_transfer(matrix),
    )


def forgetting(matrix: Sequence[Sequence[float]]) -> float | None:
    """mean over i < T of (max over t of A[t, i]) − A[T, i]. The final accuracy is among the maxima: never negative."""
    final = matrix[-1]
    best = [max(row[task] for row in matrix[task:]) for task in range(len(final) - 1)]
    return float(np.mean([peak - end for peak, end in zip(best, final, strict=False)])) if best else None


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float | None:
    """mean over i < T of A[T, i] − A[i, i]: what later tasks did to earlier ones; negative where they harmed."""
    final = matrix[-1]
    changes = [final[task] - matrix[task][task] for task in range(len(final) - 1)]
    return float(np.mean(changes)) if changes else None


def _by_task(correct: npt.NDArray[np.bool_], labels: Int64, sizes: Sequence[int]) -> tuple[float, ...]:
    """Accuracy on the test images of each task."""
    task = np.searchsorted(np.cumsum(sizes), labels, side="right")
    images = np.bincount(task, minlength=len(sizes))
    if not images.all():
        raise UserError(f"task {int(np.argmin(images)) + 1} has no test images, so its accuracy cannot be measured")
    return tuple((np.bincount(task, weights=correct, minlength=len(sizes)) * 100 / images).tolist())


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


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(np.around(values, decimals=2).tolist())


def _listed(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
