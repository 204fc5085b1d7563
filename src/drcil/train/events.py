"""Training events, for listeners: the progress display, the event log, loggers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True)
class StageStarted:
    task: int
    stage: str
    epochs: int
    first_epoch: int
    """0, or the epoch of the snapshot from which training resumes."""
    images: int
    """Images per epoch."""


@dataclass(frozen=True)
class StepDone:
    """Sent for every step; ``losses`` only now and then, because fetching them waits for the device."""

    task: int
    stage: str
    epoch: int
    images: int
    losses: Mapping[str, float] | None


@dataclass(frozen=True)
class EpochDone:
    task: int
    stage: str
    epoch: int
    lr: float
    """The rate of its first step."""
    losses: Mapping[str, float]
    """Each term's average over the epoch, and ``total``, the weighted sum."""
    seconds: float
    accuracy: float | None
    """Percent, if it was measured after this epoch."""
    measured_on: Literal["test", "validation"]
    """Test images of all classes so far, or images held out of the training images of the new classes."""
    time: float = field(default_factory=time.time, compare=False)
    """When, in seconds since 1970."""


@dataclass(frozen=True)
class StageDone:
    task: int
    stage: str
    seconds: float
    restored: bool
    """Whether the result came from a finished stage of an interrupted run."""


@dataclass(frozen=True)
class TaskDone:
    """Sent by runs, which measure every task."""

    task: int
    classes: int
    """So far."""
    seconds: float
    figures: Mapping[str, Mapping[str, float | None]]
    """By readout: every metric that is one number, over the tasks so far; ``last`` is the accuracy after this one."""
    time: float = field(default_factory=time.time, compare=False)


Event = StageStarted | StepDone | EpochDone | StageDone | TaskDone
Record = EpochDone | TaskDone
"""Events that loggers write."""


class Listener(Protocol):
    def __call__(self, event: Event, /) -> None: ...


def silence(event: Event) -> None:
    """The listener that does nothing."""
