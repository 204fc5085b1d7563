"""Which tasks are taken for which."""

from __future__ import annotations

import numpy as np

from .history import History
from .table import METRICS


@METRICS.register("confusion")
def confusion(history: History) -> list[list[float]]:
    """After the last task, for the test images of each task (a row): the share answered with a class of each task.

    The diagonal is the share answered within the right task, the wrong classes of it included.
    """
    record, learnt = history.records[-1], len(history.records)
    ends = np.cumsum(history.sizes[:learnt])
    true, answered = (np.searchsorted(ends, labels, side="right") for labels in (record.labels, record.top[:, 0]))
    images = np.bincount(true * learnt + answered, minlength=learnt * learnt).reshape(learnt, learnt)
    shares: list[list[float]] = np.around(images * 100 / images.sum(axis=1, keepdims=True), decimals=2).tolist()
    return shares
