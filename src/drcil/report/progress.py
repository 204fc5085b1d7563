"""Listeners that show a run while it trains: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ..train.events import EpochDone, Event, Listener, StageDone, StageStarted, StepDone
from .forecast import Forecast


@contextmanager
def showing(console: Console, work: Sequence[Sequence[int]]) -> Iterator[Listener]:
    """The listener that fits the console, for a run of this planned work (image-epochs by task and stage)."""
    if not console.is_terminal:
        yield Lines(console, Forecast(work))
        return
    bar = Bar(console, Forecast(work))
    with bar.progress:
        yield bar


class Lines:
    """One line when a stage ends, and one for every accuracy that is measured in between."""

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
                self._say(f"{_place(event, self._forecast)}: {_measured(event)}")
        elif isinstance(event, StageDone):
            self._say(f"{_place(event, self._forecast)}: {self._end_of(event)}")

    def _end_of(self, event: StageDone) -> str:
        if event.restored:
            return "restored from an earlier process"
        epochs = "1 epoch" if self._epochs == 1 else f"{self._epochs} epochs"
        parts = [f"{epochs} in {event.seconds:.1f} s", _listed(self._losses)]
        left = self._forecast.seconds_left()
        return ", ".join([*parts, f"about {duration(left)} left"] if left else parts)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class _TwoLines(Progress):
    """The bar, and below it the losses, which would not fit beside it in eighty columns."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["losses"], style="dim", no_wrap=True, overflow="ellipsis")


class Bar:
    """One live bar that every stage fills anew."""

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
            # Losses arrive about twice a second, which is as often as the rest needs to be worded anew.
            fields = {} if event.losses is None else self._fields(event.epoch, event.losses)
            self.progress.update(self._bar, advance=event.images, **fields)
        elif isinstance(event, EpochDone):
            fields = self._fields(event.epoch, event.losses)
            self.progress.update(self._bar, completed=(event.epoch + 1) * self._images, **fields)
            if event.accuracy is not None:
                self._console.print(f"{_place(event, self._forecast)}: {_measured(event)}", markup=False)

    def _begin(self, event: StageStarted) -> None:
        if self._bar is not None:
            self.progress.remove_task(self._bar)
        self._epochs, self._images = event.epochs, event.images
        self._bar = self.progress.add_task(
            _place(event, self._forecast),
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
    """An estimate in words, no finer than it is known.

    >>> rough(7), rough(250), rough(7384), rough(40_000), rough(300_000), rough(2e8)
    ('7 s', '4 min', '2 h', '11 h', '3 days', '6 years')
    """
    for length, unit, until in ((1, "s", 90), (60, "min", 90), (3600, "h", 36), (86400, "days", 700)):
        if seconds < until * length:
            return f"{max(1, _two_digits(seconds / length))} {unit}"
    return f"{_two_digits(seconds / (365.25 * 86400))} years"


def _two_digits(value: float) -> int:
    return round(value) if value < 100 else int(float(f"{value:.2g}"))


def _place(event: StageStarted | EpochDone | StageDone, forecast: Forecast) -> str:
    return f"task {event.task}/{forecast.tasks} {event.stage}"


def _measured(event: EpochDone) -> str:
    return f"{event.measured_on} accuracy {event.accuracy:.2f} % after epoch {event.epoch + 1}"


def _listed(losses: Mapping[str, float]) -> str:
    """Every term by name; their sum only where there are several."""
    return " ".join(f"{name} {value:.3f}" for name, value in losses.items() if name != "total" or len(losses) > 2)
