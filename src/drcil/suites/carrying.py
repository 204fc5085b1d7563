"""Many runs side by side: finished ones are reused, interrupted ones resume, the rest start.

Every run is carried out by a worker of its own, so that one that fails leaves the others alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..errors import UserError
from ..runs.begin import begin_run, unused
from ..runs.plan import load_stream, plan_run
from ..runs.run import Run
from .datasets import Datasets
from .engines import Engine, Worker
from .entries import Entry
from .follow import Follower
from .outlook import Outlook

_GLANCE = 0.2
"""Seconds between two looks at the workers."""


class Display(Protocol):
    """Who is told how a suite goes."""

    def say(self, line: str) -> None:
        """Something is done."""

    def step(self, line: str) -> None:
        """Something has gone on."""

    def show(self, lines: Sequence[str]) -> None:
        """What is under way, now."""


def ensure_begun(entry: Entry, datasets: Datasets, told: Callable[[str], None] = warnings.warn) -> None:
    """Begin a run, unless it is already."""
    if entry.begun:
        return
    stream = load_stream(entry.settings, datasets.of(entry.settings))
    # Another suite may have begun one of this name since the runs were planned.
    entry.directory = unused(entry.directory)
    begin_run(entry.settings, entry.directory, plan_run(entry.settings, stream), told)
    entry.begun = True


def carry_out(
    entries: Sequence[Entry],
    jobs: int,
    begin: Callable[[Entry], None],
    engine: Engine,
    logs: Path,
    display: Display,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Finish what is not finished, so many runs at a time; every entry then has a result or a failure.

    ``after`` is called whenever a run has come to its end.
    """
    waiting = [entry for entry in entries if entry.result is None]
    working: list[tuple[Entry, Worker, Follower]] = []
    outlook = Outlook(entries, jobs)
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                entry = waiting.pop(0)
                resumes = entry.begun
                try:
                    begin(entry)
                    display.say(f"{entry.name}: {'resumes' if resumes else 'starts'} in {entry.directory}")
                    # The follower first, so that it misses nothing.
                    follower = Follower(entry.directory)
                    working.append((entry, engine.start(entry.directory, log_of(entry, logs)), follower))
                except UserError as error:
                    _fail(entry, str(error), display)
                    after()
            for place in list(working):
                entry, worker, follower = place
                over = not worker.running()
                for words in follower.finished():
                    display.step(f"{entry.name}: {words}")
                if over:
                    working.remove(place)
                    _conclude(entry, worker, display)
                    display.step(outlook.words(_under_way(working)))
                    after()
            display.show(
                [*(f"{entry.name}: {follower}" for entry, _, follower in working), outlook.words(_under_way(working))]
            )
            if working:
                time.sleep(_GLANCE)
    finally:
        for _, worker, _ in working:
            worker.ask_to_stop()
        for _, worker, _ in working:
            worker.close()


def log_of(entry: Entry, logs: Path) -> Path:
    """Where the output of a run goes."""
    return logs / f"{entry.directory.name}.log"


def _under_way(working: Sequence[tuple[Entry, Worker, Follower]]) -> list[tuple[Entry, float | None]]:
    return [(entry, follower.seconds_left()) for entry, _, follower in working]


def _conclude(entry: Entry, worker: Worker, display: Display) -> None:
    failure = worker.failure()
    worker.close()
    if failure is not None:
        _fail(entry, failure, display)
        return
    entry.result = Run.open(entry.directory).result()
    about = ", ".join([*entry.details, f"seed {entry.settings.seed}"])
    for method in entry.readings:
        result = entry.outcome(method).result
        assert result is not None
        display.say(f"{method}, {about}: done, avg {result['avg']:.2f}, last {result['last']:.2f}")


def _fail(entry: Entry, failure: str, display: Display) -> None:
    entry.failure = failure
    display.say(f"{entry.name}: failed: {failure}")
