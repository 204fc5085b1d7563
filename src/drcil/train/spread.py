"""A batch that is spread over processes, and over parts that a process learns from one after another.

The batch of a schedule is the batch of all processes together. Each looks at its own images of the batch that one
process would see, and every loss term counts by its samples in all of them. So the gradient is that of the whole batch,
whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..data.sources.imageset import Int64
from ..errors import UserError
from ..keys import Share
from ..stages import Stage
from ..team import Team

_LEAST = 2
"""Images that a process, or a part, has at least: batch normalisation needs two."""


@dataclass(frozen=True)
class Spread:
    """Who looks at which images of a batch."""

    team: Team
    parts: int = 1
    """How many at most, in each process."""

    @property
    def plain(self) -> bool:
        """Whether one process looks at whole batches."""
        return self.team.alone and self.parts == 1

    def is_whole(self, total: int) -> bool:
        """Whether every process looks at all images, because a batch of so many is too small to be shared."""
        return total < _LEAST * self.team.size

    def own(self, total: int) -> slice:
        """Where in a batch of so many the images of this process are."""
        return slice(0, total) if self.is_whole(total) else self.team.share(total)

    def shares(self, total: int) -> list[Share]:
        """The parts of this process. All processes have equally many, for they meet in each."""
        fewest = total if self.is_whole(total) else total // self.team.size
        parts = max(1, min(self.parts, fewest // _LEAST))
        own = np.arange(total, dtype=np.int64)[self.own(total)]
        return [Share(total, torch.from_numpy(part)) for part in np.array_split(own, parts)]

    def chunk(self, sizes: Sequence[int]) -> Int64:
        """Where in several batches that stand behind each other the images of this process are."""
        starts = np.cumsum([0, *sizes[:-1]])
        places = [start + np.arange(size)[self.own(size)] for start, size in zip(starts, sizes, strict=True)]
        return np.concatenate(places).astype(np.int64)

    def require_enough(self, stage: Stage) -> None:
        """A batch has an image for every process."""
        size = stage.schedule.batch_size
        if size < self.team.size:
            raise UserError(
                f"stage '{stage.name}' has batches of {size} images, fewer than the {self.team.size} processes that "
                f"would share them; use fewer processes or larger batches"
            )
