"""Where a run in another process stands, from the event log that it writes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..reading import is_file, open_file
from ..report.forecast import Forecast
from ..report.progress import duration
from ..runs.events import EVENTS, LONGEST, event_of, parse_events
from ..train.events import EpochDone, StageDone, StageStarted, StepDone, TaskDone


class Follower:
    """Reads what is added to a run's event log. What earlier processes wrote is passed over."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS
        self._read = self._path.stat().st_size if is_file(self._path) else 0
        self._forecast = Forecast([])
        self._now = time.time()
        """Of the last event: between two of them nothing is known to have been done."""
        self._place = "starting"
        self._epochs, self._images = 0, 0

    def finished(self) -> list[str]:
        """The tasks that were finished since the last look, in words."""
        numbers = []
        for entry in self._entries():
            with suppress(KeyError, TypeError, ValueError):  # Not one of a run's own.
                if self._take(entry):
                    numbers.append(entry["task"])
        return [f"task {number}/{self._forecast.tasks} done{self._left()}" for number in numbers]

    def __str__(self) -> str:
        """Task, stage, epoch and the time left, as far as they are known."""
        return f"{self._place}{self._left()}"

    def seconds_left(self) -> float | None:
        """Of the run; None where it is not known."""
        left = self._forecast.seconds_left()
        return max(0.0, left - (time.time() - self._now)) if left else None

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f", about {duration(left)} left"

    def _entries(self) -> list[dict[str, Any]]:
        """The lines that are new and whole."""
        try:
            with open_file(self._path, LONGEST) as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._read += len(whole + newline)
        return parse_events(whole)

    def _take(self, entry: dict[str, Any]) -> bool:
        """Understand one event; whether it ends a task."""
        self._now, event = entry["time"], event_of(entry)
        if entry["event"] == "Started":
            self._forecast = Forecast(entry["work"], clock=lambda: self._now)
        elif isinstance(event, StageStarted):
            self._epochs, self._images = event.epochs, event.images
            self._forecast(event)
            self._put(event.task, event.stage, event.first_epoch)
        elif isinstance(event, EpochDone):
            # The log has no steps: an epoch counts as one.
            self._forecast(StepDone(event.task, event.stage, event.epoch, self._images, None))
            self._forecast(event)
            self._put(event.task, event.stage, min(event.epoch + 1, self._epochs - 1))
        elif isinstance(event, StageDone):
            self._forecast(event)
        return isinstance(event, TaskDone)

    def _put(self, task: int, stage: str, epoch: int) -> None:
        self._place = f"task {task}/{self._forecast.tasks} {stage}, epoch {epoch + 1}/{self._epochs}"
