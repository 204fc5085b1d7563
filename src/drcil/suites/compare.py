"""Many runs side by side: finished ones are reused, interrupted ones resume, the rest start.

Every run is a process of its own, so that one that fails leaves the others alone.
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
from .children import Child
from .entries import Entry, Load
from .follow import Follower

_GLANCE = 0.2
"""Seconds between two looks at the children."""


class Display(Protocol):
    """Who is told how a comparison goes."""

    def say(self, line: str) -> None:
        """Something is done."""

    def step(self, line: str) -> None:
        """Something has gone on."""

    def show(self, lines: Sequence[str]) -> None:
        """What is under way, now."""


class Worker(Protocol):
    """A process that carries out one run; ``Child`` is one."""

    def running(self) -> bool: ...
    def failure(self) -> str | None: ...
    def ask_to_stop(self) -> None: ...
    def close(self) -> None: ...


def start_run(entry: Entry, load: Load, logs: Path, told: Callable[[str], None] = warnings.warn) -> Child:
    """A process that goes on with the run, which is begun here unless it is already."""
    if not entry.begun:
        stream = load_stream(entry.settings, load().dataset)
        # Another comparison may have begun one of this name since the runs were planned.
        entry.directory = unused(entry.directory)
        begin_run(entry.settings, entry.directory, plan_run(entry.settings, stream), told)
        entry.begun = True
    return Child(["resume", str(entry.directory)], logs / f"{entry.directory.name}.log")


def carry_out(entries: Sequence[Entry], jobs: int, start: Callable[[Entry], Worker], display: Display) -> None:
    """Finish what is not finished, so many runs at a time; every entry then has a result or a failure."""
    waiting = [entry for entry in entries if entry.result is None]
    working: list[tuple[Entry, Worker, Follower]] = []
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                entry = waiting.pop(0)
                display.say(f"{entry.name}: {'resumes' if entry.begun else 'starts'} in {entry.directory}")
                # The follower first, so that it misses nothing.
                follower = Follower(entry.directory)
                try:
                    working.append((entry, start(entry), follower))
                except UserError as error:
                    _fail(entry, str(error), display)
            for place in list(working):
                entry, worker, follower = place
                over = not worker.running()
                for words in follower.finished():
                    display.step(f"{entry.name}: {words}")
                if over:
                    working.remove(place)
                    _conclude(entry, worker, display)
            display.show([f"{entry.name}: {follower}" for entry, _, follower in working])
            if working:
                time.sleep(_GLANCE)
    finally:
        for _, worker, _ in working:
            worker.ask_to_stop()
        for _, worker, _ in working:
            worker.close()


def _conclude(entry: Entry, worker: Worker, display: Display) -> None:
    failure = worker.failure()
    worker.close()
    if failure is not None:
        _fail(entry, failure, display)
        return
    entry.result = Run.open(entry.directory).result()
    for method in entry.readings:
        result = entry.outcome(method).result
        assert result is not None
        display.say(f"{method}, seed {entry.settings.seed}: done, avg {result['avg']:.2f}, last {result['last']:.2f}")


def _fail(entry: Entry, failure: str, display: Display) -> None:
    entry.failure = failure
    display.say(f"{entry.name}: failed: {failure}")
