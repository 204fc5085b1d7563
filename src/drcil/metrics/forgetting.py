"""How accuracy on earlier tasks changes while later ones are learnt."""

from __future__ import annotations

from .accuracy import mean
from .history import History
from .table import METRICS


@METRICS.register("forgetting")
def forgetting(history: History) -> float | None:
    """How far accuracy on earlier tasks has fallen from its best.

    mean over i < T of (max over t of A[t, i]) − A[T, i]; None for T = 1. The final accuracy is among the maxima, so
    that it is never negative.
    """
    *_, final = history.matrix
    best = [max(row[task] for row in history.matrix[task:]) for task in range(len(final) - 1)]
    return mean([peak - end for peak, end in zip(best, final, strict=False)]) if best else None


@METRICS.register("backward_transfer")
def backward_transfer(history: History) -> float | None:
    """How accuracy on earlier tasks has changed since they were learnt.

    mean over i < T of A[T, i] − A[i, i]; None for T = 1. Negative where later tasks harmed earlier ones.
    """
    *_, final = history.matrix
    changes = [final[task] - history.matrix[task][task] for task in range(len(final) - 1)]
    return mean(changes) if changes else None
