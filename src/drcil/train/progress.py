"""Progress of training on a terminal, and the time left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from .events import EpochDone, Event, Listener, StageDone, StageStarted, StepDone


class Forecast:
    """Follows the events of a run whose work per task and stage, in image-epochs, was planned.

    There is no forecast before a task without planned stages is over.

    The pace is that of the whole run so far, including what happens between stages. What was restored from an earlier
    process counts neither as work nor as time.
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
        """Of the current stage; None before its first step."""
        seconds = self._clock() - self._stage_begun
        return self._stage_trained / seconds if self._stage_trained and seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Of the whole run; None before the first step of this process, and where a remaining task has no plan."""
        if self._begun is None or not self._trained or not all(self._work[self._task - 1 :]):
            return None
        return self._work_left() * (self._clock() - self._begun) / self._trained

    def _work_left(self) -> int:
        """The rest of the current stage as measured, and of all later stages as planned."""
        this_task = self._work[self._task - 1] if 0 < self._task <= len(self._work) else ()
        later_tasks = self._work[self._task :]
        return self._stage_left + sum(this_task[self._position + 1 :]) + sum(sum(stages) for stages in later_tasks)


@contextmanager
def showing(console: Console, work: Sequence[Sequence[int]]) -> Iterator[Listener]:
    """A listener that shows progress on the console; ``work``: image-epochs by task and stage."""
    if not console.is_terminal:
        yield Lines(console, Forecast(work))
        return
    bar = Bar(console, Forecast(work))
    with bar.progress:
        yield bar


class JsonLines:
    """Writes progress for programs: a JSON object per line with the stage, the finished share and the time left."""

    def __init__(self, work: Sequence[Sequence[int]]) -> None:
        self._forecast, self._total, self._finished = Forecast(work), sum(map(sum, work)), 0
        self._stage = ""

    def __call__(self, event: Event) -> None:
        self._forecast(event)
        if isinstance(event, StageStarted):
            self._stage = event.stage
            self._finished += event.first_epoch * event.images
        elif isinstance(event, StepDone):
            self._finished += event.images
            if event.losses is None:  # Losses come about twice a second, which is often enough.
                return
        elif not isinstance(event, StageDone):
            return
        progress = min(1.0, self._finished / self._total) if self._total else None
        seconds_left = self._forecast.seconds_left()
        message = {"event": "progress", "stage": self._stage, "progress": progress, "seconds_left": seconds_left}
        print(json.dumps(message), flush=True)


class Lines:
    """One line at the end of every stage, and one for every accuracy measured during a stage."""

    def __init__(self, console: Console, forecast: Forecast) -> None:
        self._console, self._forecast = console, forecast
        self._epochs = 0
        self._losses: Mapping[str, float] = {}

    def __call__(self, event: Event) -> None:
        self._forecast(event)
        if isinstance(event, StageStarted):
            self._epochs = event.epochs - event.first_epoch
        elif isinstance(event, EpochDone):
            self._losses = event.losses
            if event.accuracy is not None:
                self._print(f"{_stage_label(event, self._forecast)}: {_accuracy(event)}")
        elif isinstance(event, StageDone):
            self._print(f"{_stage_label(event, self._forecast)}: {self._end_of(event)}")

    def _end_of(self, event: StageDone) -> str:
        if event.restored:
            return "restored from an earlier process"
        epochs = "1 epoch" if self._epochs == 1 else f"{self._epochs} epochs"
        parts = [f"{epochs} in {event.seconds:.1f} s", _listed(self._losses)]
        left = self._forecast.seconds_left()
        return ", ".join([*parts, f"about {duration(left)} left"] if left else parts)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class _TwoLines(Progress):
    """The bar, and below it the losses, since both do not fit into eighty columns."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["losses"], style="dim", no_wrap=True, overflow="ellipsis")


class Bar:
    """A live bar for the current stage."""

    def __init__(self, console: Console, forecast: Forecast) -> None:
        self._console, self._forecast = console, forecast
        self._epochs, self._images = 0, 0
        self.progress = _TwoLines(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[epoch]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[pace]}", style="cyan", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", style="green", table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._bar: TaskID | None = None

    def __call__(self, event: Event) -> None:
        self._forecast(event)
        if isinstance(event, StageStarted):
            self._begin(event)
        elif self._bar is None:
            return
        elif isinstance(event, StepDone):
            # Losses arrive about twice a second, often enough to update the rest.
            fields = {} if event.losses is None else self._fields(event.epoch, event.losses)
            self.progress.update(self._bar, advance=event.images, **fields)
        elif isinstance(event, EpochDone):
            fields = self._fields(event.epoch, event.losses)
            self.progress.update(self._bar, completed=(event.epoch + 1) * self._images, **fields)
            if event.accuracy is not None:
                self._console.print(f"{_stage_label(event, self._forecast)}: {_accuracy(event)}", markup=False)

    def _begin(self, event: StageStarted) -> None:
        if self._bar is not None:
            self.progress.remove_task(self._bar)
        self._epochs, self._images = event.epochs, event.images
        self._bar = self.progress.add_task(
            _stage_label(event, self._forecast),
            total=event.epochs * event.images,
            completed=event.first_epoch * event.images,
            **self._fields(event.first_epoch, {}),
        )

    def _fields(self, epoch: int, losses: Mapping[str, float]) -> dict[str, Any]:
        pace, left = self._forecast.images_per_second(), self._forecast.seconds_left()
        return {
            "epoch": f"epoch {epoch + 1}/{self._epochs}",
            "pace": "" if pace is None else f"{pace:,.0f} images/s",
            "left": "" if left is None else f"{duration(left)} left",
            "losses": _listed(losses),
        }


def duration(seconds: float) -> str:
    """
    >>> duration(7), duration(250), duration(7384)
    ('0:07', '4:10', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rough(seconds: float) -> str:
    """An estimate, rounded.

    >>> rough(7), rough(250), rough(7384), rough(40_000), rough(300_000), rough(2e8)
    ('7 s', '4 min', '2 h', '11 h', '3 days', '6 years')
    """
    for length, unit, until in ((1, "s", 90), (60, "min", 90), (3600, "h", 36), (86400, "days", 700)):
        if seconds < until * length:
            return f"{max(1, _two_digits(seconds / length))} {unit}"
    return f"{_two_digits(seconds / (365.25 * 86400))} years"


def _two_digits(value: float) -> int:
    return round(value) if value < 100 else int(float(f"{value:.2g}"))


def _stage_label(event: StageStarted | EpochDone | StageDone, forecast: Forecast) -> str:
    return f"task {event.task}/{forecast.tasks} {event.stage}"


def _accuracy(event: EpochDone) -> str:
    return f"{event.measured_on} accuracy {event.accuracy:.2f} % after epoch {event.epoch + 1}"


def _listed(losses: Mapping[str, float]) -> str:
    """Every term by name; their sum only where there are several."""
    return " ".join(f"{name} {value:.3f}" for name, value in losses.items() if name != "total" or len(losses) > 2)
