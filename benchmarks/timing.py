"""Clocks: works that are compared take turns, so that what disturbs one disturbs the others too."""

from __future__ import annotations

import time
from collections.abc import Callable

from drcil.train.events import EpochDone, Event, StageStarted, StepDone

Timed = Callable[[], float]
"""A work that says how many seconds of it count."""


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(rounds: int, *works: Timed) -> list[float]:
    """The least seconds of each work, taken in turns: disturbances only ever add."""
    times = [[work() for work in works] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


class EpochClock:
    """Listens to the engine and notes when an epoch began, when each of its steps ended, and how long it took."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.ends: list[float] = []
        self.seconds = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.begun, self.ends = time.perf_counter(), []
        elif isinstance(event, StepDone):
            self.ends.append(time.perf_counter())
        elif isinstance(event, EpochDone):
            self.seconds = event.seconds
