"""The table of metrics, and what is computed by it. Accuracies are in percent.

A metric is a function of the history of a run. All that are registered are computed for every readout, ours and
others', and stored by name in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import UserError
from ..registry import Registry
from .history import History, TaskPrediction

METRICS: Registry[Callable[[History], Any]] = Registry("metric", "drcil.metrics")
"""Each gives a number, None where it has no meaning, or a list of such."""


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
"""The metrics that sum up another, which has a value after each task."""


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


def _as_json(value: Any) -> Any:
    """Numbers, None and lists of such; of numpy, too."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_json(item) for item in value]
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(f"it gave {value!r}; a metric gives a finite number, None, or a list of such")
    return int(value) if isinstance(value, Integral) else float(value)
