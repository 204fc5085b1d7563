"""The dynamic residual classifier (DRC): the old branches are merged into one, so the head stops growing."""

from __future__ import annotations

from torch import Tensor

from .base import HEADS
from .residual import ResidualHead


@HEADS.register("drc")
class DynamicResidualHead(ResidualHead):
    """DRC: the residual classifier with two branches only, a new one and the merged, frozen past.

    Moving on to task t, ω_{B'_{t-1}} = (ω_{B_{t-1}} + ω_{B'_{t-2}}) / 2, with B'_1 = B_1. Branches are linear, so
    on the old rows the merged branch alone gives what the whole head answered before (``fusion="mean"``), or half
    of it (``"sum"``, from task 3 on): the head enters a task knowing what it knew.

    Drop-in: where a network ends in ``nn.Linear(512, classes)``, use ``DynamicResidualHead(512)``, call ``grow``
    at the start of each task, and read ``head(features).fused``.
    """

    @staticmethod
    def next_past(old: Tensor, new: Tensor) -> Tensor:
        """The old branch of the next task: the mean of this task's old and new ones (at task 2, the new one)."""
        return (old + new) / 2 if len(old) else new.unsqueeze(0)
