"""Executes jobs in parallel, follows their event logs, shows progress.

Every job has a process of its own, so that a failure does not affect the others.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..errors import UserError
from ..files import open_regular, require_directories
from ..runs.evidence import record_of
from ..runs.execution import Run, create_run, unused
from ..runs.plan import load_stream, plan_run
from ..runs.run_files import EVENTS, LONGEST, event_of, parse_events
from ..train.events import EpochDone, StageDone, StageStarted, StepDone, TaskDone
from ..train.progress import Forecast, duration
from .backends import Backend, JobProcess
from .jobs import Datasets, Job


class LogFollower:
    """Reads what is added to the event log of a run. Lines of earlier processes are skipped."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS
        self._read = self._path.stat().st_size if os.path.isfile(self._path) else 0
        self._forecast = Forecast([])
        self._now = time.time()
        """Time of the last event."""
        self._position = "starting"
        self._epochs, self._images = 0, 0

    def finished(self) -> list[str]:
        """A text for each task that was finished since the last call."""
        numbers = []
        for entry in self._entries():
            with suppress(KeyError, TypeError, ValueError):  # Not an event of a run.
                if self._take(entry):
                    numbers.append(entry["task"])
        return [f"task {number}/{self._forecast.tasks} done{self._left()}" for number in numbers]

    def __str__(self) -> str:
        """Task, stage, epoch and the time left, as far as they are known."""
        return f"{self._position}{self._left()}"

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
            with open_regular(self._path, LONGEST) as file:
                file.seek(self._read)
                complete_lines, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._read += len(complete_lines + newline)
        return parse_events(complete_lines)

    def _take(self, entry: dict[str, Any]) -> bool:
        """Take one event into account; whether it ends a task."""
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
        self._position = f"task {task}/{self._forecast.tasks} {stage}, epoch {epoch + 1}/{self._epochs}"


class RemainingTime:
    """Estimates the time that the jobs of an experiment take.

    A job takes as long as others on its stream, or if none of these is known, as long as all others.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int) -> None:
        self._jobs, self._parallel = jobs, parallel

    def text(self, running: Sequence[tuple[Job, float | None]]) -> str:
        """In a line; ``running``: jobs with the seconds that each has left, if known."""
        done = sum(job.result is not None for job in self._jobs)
        failed = sum(job.failure is not None for job in self._jobs)
        left = len(self._jobs) - done - failed - len(running)
        parts = [f"{done} of {len(self._jobs)} runs done"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{len(running)} under way", f"{left} left"]
        seconds = self.seconds_left(running)
        return ", ".join(parts) + (f", about {duration(seconds)} left in all" if seconds else "")

    def seconds_left(self, running: Sequence[tuple[Job, float | None]]) -> float | None:
        """Of all jobs together; None before anything is known."""
        durations = [(job.settings.stream, job.result.seconds) for job in self._jobs if job.result is not None]
        durations += [(job.settings.stream, left) for job, left in running if left is not None]
        if not durations:
            return None
        busy = {id(job) for job, _ in running}
        waiting = [job for job in self._jobs if job.result is None and job.failure is None and id(job) not in busy]
        waiting += [job for job, left in running if left is None]
        seconds = [left for _, left in running if left is not None] + [_expected(job, durations) for job in waiting]
        # No less than the longest of them takes by itself.
        return max(max(seconds, default=0.0), sum(seconds) / self._parallel)


def _expected(job: Job, durations: Sequence[tuple[str, float]]) -> float:
    same_stream = [seconds for stream, seconds in durations if stream == job.settings.stream]
    return fmean(same_stream or [seconds for _, seconds in durations])


_POLL_SECONDS = 0.2


class Display(Protocol):
    """Shows how an experiment proceeds."""

    def print_line(self, line: str) -> None:
        """Something is done."""

    def print_step(self, line: str) -> None:
        """Progress of a running job."""

    def show_running(self, lines: Sequence[str]) -> None:
        """The running jobs, now."""


def start_job(job: Job, datasets: Datasets, warn: Callable[[str], None] = warnings.warn) -> None:
    """Create the run directory of a job, unless it exists. A run behind a link is only read."""
    require_directories(job.directory.parent, job.directory.name)
    if job.exists:
        return
    stream = load_stream(job.settings, datasets.load(job.settings))
    # Another experiment may have created a run of this name since the jobs were planned.
    job.directory = unused(job.directory)
    create_run(job.settings, job.directory, plan_run(job.settings, stream), warn, idle="warn")
    job.exists = True


Running = tuple[Job, JobProcess, LogFollower]


def run_jobs(
    jobs: Sequence[Job],
    parallel: int,
    datasets: Datasets,
    backend: Backend,
    logs: Path,
    display: Display,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Finish all jobs, so many at a time; each then has a result or a failure. ``after`` is called after each."""
    for job in jobs:
        if job.result is not None:
            display.print_line(f"{job.name}: reused from {job.directory}")
    waiting = [job for job in jobs if job.result is None]
    running: list[Running] = []
    remaining = RemainingTime(jobs, parallel)
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                job = waiting.pop(0)
                verb = "resumes" if job.exists else "starts"
                try:
                    start_job(job, datasets, display.print_line)
                    display.print_line(f"{job.name}: {verb} in {job.directory}")
                    # The follower first, so that it misses nothing.
                    follower = LogFollower(job.directory)
                    running.append((job, backend.start(job.directory, log_file(job, logs)), follower))
                except UserError as error:
                    _fail(job, str(error), display)
                    after()
            for entry in list(running):
                job, process, follower = entry
                is_over = not process.running()
                for line in follower.finished():
                    display.print_step(f"{job.name}: {line}")
                if is_over:
                    running.remove(entry)
                    _collect(job, process, display)
                    display.print_step(remaining.text(_seconds_left(running)))
                    after()
            lines = [f"{job.name}: {follower}" for job, _, follower in running]
            display.show_running([*lines, remaining.text(_seconds_left(running))])
            if running:
                time.sleep(_POLL_SECONDS)
    finally:
        for _, process, _ in running:
            process.ask_to_stop()
        for _, process, _ in running:
            process.close()


def log_file(job: Job, logs: Path) -> Path:
    """The output of a job."""
    return logs / f"{job.directory.name}.log"


def _seconds_left(running: Sequence[Running]) -> list[tuple[Job, float | None]]:
    return [(job, follower.seconds_left()) for job, _, follower in running]


def _collect(job: Job, process: JobProcess, display: Display) -> None:
    failure = process.failure()
    process.close()
    if failure is not None:
        _fail(job, failure, display)
        return
    job.finished = record_of(Run.open(job.directory))
    details = ", ".join([*job.details, f"seed {job.settings.seed}"])
    for label, readout in job.readouts.items():
        result = job.finished.result
        assert result is not None
        result = result.led_by(readout)
        values = [f"{name} {result.figure(name):.2f}" for name in dict.fromkeys((result.metric, "last"))]
        display.print_line(f"{label}, {details}: done, {', '.join(values)}")


def _fail(job: Job, failure: str, display: Display) -> None:
    job.failure = failure
    display.print_line(f"{job.name}: failed: {failure}")


class ProgressDisplay:
    """Lines for what is done; on a terminal a live line for each running job, elsewhere a line for each task."""

    def __init__(self, console: Console, live: Live | None, quiet: bool) -> None:
        self._console, self._live, self._quiet = console, live, quiet

    def print_line(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    def print_step(self, line: str) -> None:
        if self._live is None:
            self.print_line(line)

    def show_running(self, lines: Sequence[str]) -> None:
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))


@contextmanager
def progress_display(console: Console, quiet: bool) -> Iterator[ProgressDisplay]:
    """The display that fits the console."""
    if quiet or not console.is_terminal:
        yield ProgressDisplay(console, None, quiet)
        return
    with Live(console=console, transient=True) as live:
        yield ProgressDisplay(console, live, quiet)
