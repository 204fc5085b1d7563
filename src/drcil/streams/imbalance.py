"""How uneven the training images of each task are: many of a new class, few of an old one, known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.sources.imageset import Int64
from .stream import Stream


@dataclass(frozen=True)
class TaskImages:
    """What there is to learn a task from, by class in the stream's order."""

    number: int
    memory: Int64
    """Exemplars of each old class."""
    new: Int64
    """Training images of each new class."""

    @property
    def ratio(self) -> float:
        """Of the class with most images to the one with fewest, of those that have any."""
        counts = np.concatenate([self.memory, self.new])
        return float(counts.max() / counts[counts > 0].min())


def task_images(stream: Stream) -> list[TaskImages]:
    """For each task: after those before it, every old class has its quota in the memory, or all images it has."""
    counts, tasks, old = stream.counts(), [], 0
    for number, size in enumerate(stream.sizes, start=1):
        quota = stream.budget.quota(old) if old else 0
        kept = counts[:old] if quota is None else counts[:old].clip(max=quota)
        tasks.append(TaskImages(number, kept, counts[old : old + size]))
        old += size
    return tasks
