"""How fast a run trains and how long it will still take, from what the engine tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..train.events import EpochDone, Event, StageDone, StageStarted, StepDone


class Forecast:
    """Follows the events of a run whose work per task and stage, in image-epochs, was planned.

    Of a task without a planned stage nothing is known, so there is no forecast before it is over.

    The pace is that of the whole run so far, with all that happens between stages; what an earlier process did and
    this one merely restored counts neither as work nor as time.
    """

    def __init__(self, work: Sequence[Sequence[int]], clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._clock = work, clock
        self._task, self._position = 0, -1
        self._begun: float | None = None
        self._trained = 0
        self._stage_begun = clock()
        self._stage_trained = 0
        self._stage_epochs, self._stage_images = 0, 0
        self._stage_left = 0

    @property
    def tasks(self) -> int:
        return len(self._work)

    def __call__(self, event: Event) -> None:
        if event.task != self._task:
            self._task, self._position = event.task, -1
        if isinstance(event, StageStarted):
            self._position += 1
            self._stage_begun = self._clock()
            self._begun = self._stage_begun if self._begun is None else self._begun
            self._stage_trained = 0
            self._stage_epochs, self._stage_images = event.epochs, event.images
            self._stage_left = (event.epochs - event.first_epoch) * event.images
        elif isinstance(event, StepDone):
            self._trained += event.images
            self._stage_trained += event.images
            self._stage_left = max(0, self._stage_left - event.images)
        elif isinstance(event, EpochDone):
            # A sampler may draw another number of images than it did first: at the end of an epoch the count is right.
            self._stage_left = (self._stage_epochs - event.epoch - 1) * self._stage_images
        elif isinstance(event, StageDone):
            self._position += event.restored
            self._stage_left = 0

    def images_per_second(self) -> float | None:
        """Of the stage under way; None before its first step."""
        seconds = self._clock() - self._stage_begun
        return self._stage_trained / seconds if self._stage_trained and seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Of the whole run; None before the first step of this process, and where not all that is left was planned."""
        if self._begun is None or not self._trained or not all(self._work[self._task - 1 :]):
            return None
        return self._work_left() * (self._clock() - self._begun) / self._trained

    def _work_left(self) -> int:
        """Of the stage under way as it really is, of all that follows as it was planned."""
        this_task = self._work[self._task - 1] if 0 < self._task <= len(self._work) else ()
        later_tasks = self._work[self._task :]
        return self._stage_left + sum(this_task[self._position + 1 :]) + sum(sum(stages) for stages in later_tasks)
