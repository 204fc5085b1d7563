"""Many runs side by side: what is finished is read, what was stopped goes on, the rest is begun.

Every run is a process of its own, so that one that fails leaves the others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError
from ..runs.run import Run, unused
from ..runs.settings import RunSettings
from ..streams.stream import Stream
from .adopt import training_of
from .children import Child
from .follow import Follower
from .reuse import find_run, is_finished

_GLANCE = 0.2
"""Seconds between two looks at the children."""


@dataclass
class Entry:
    """One run of a comparison, and what has become of it."""

    settings: RunSettings
    directory: Path
    begun: bool
    """Whether the directory is this run's already."""
    result: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{self.settings.method}, seed {self.settings.seed}"

    @property
    def training(self) -> tuple[str, int]:
        """What runs that train the same have in common; whichever is second adopts what the first has learnt."""
        return training_of(self.settings.method), self.settings.seed


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


def plan_entries(chosen: Sequence[RunSettings], parent: Path) -> list[Entry]:
    """An entry for each run, with its result if it is finished. All of them learn one stream."""

    @cache
    def present() -> Stream | None:
        # Where the data is gone, what was learnt from it still can be compared.
        with suppress(UserError):
            return Run(parent, chosen[0]).stream()
        return None

    entries = []
    for settings in chosen:
        run = find_run(settings, parent, present)
        directory = unused(parent / settings.name) if run is None else run.directory
        result = run.result() if run is not None and is_finished(run) else None
        entries.append(Entry(settings, directory, run is not None, result))
    return entries


def start_process(entry: Entry, arguments: Callable[[RunSettings, Path], list[str]], logs: Path) -> Child:
    """Go on with a run, or begin it with the arguments of ``drcil run``."""
    command = ["resume", str(entry.directory)] if entry.begun else arguments(entry.settings, entry.directory)
    return Child(command, logs / f"{entry.directory.name}.log")


def carry_out(entries: Sequence[Entry], jobs: int, start: Callable[[Entry], Worker], display: Display) -> None:
    """Finish what is not finished, so many runs at a time; every entry then has a result or a failure."""
    # What was begun comes first: its twin may adopt all of it.
    waiting = sorted((entry for entry in entries if entry.result is None), key=lambda entry: not entry.begun)
    working: list[tuple[Entry, Worker, Follower]] = []
    try:
        while waiting or working:
            while len(working) < jobs and (ready := _ready(waiting, [entry for entry, _, _ in working])):
                waiting.remove(ready)
                display.say(f"{ready.name}: {'goes on' if ready.begun else 'begins'} in {ready.directory}")
                # The follower first, so that it misses nothing.
                follower = Follower(ready.directory)
                working.append((ready, start(ready), follower))
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


def _ready(waiting: Sequence[Entry], working: Sequence[Entry]) -> Entry | None:
    """The next to begin: none of which a twin is under way."""
    busy = {entry.training for entry in working}
    return next((entry for entry in waiting if entry.training not in busy), None)


def _conclude(entry: Entry, worker: Worker, display: Display) -> None:
    entry.failure = worker.failure()
    worker.close()
    if entry.failure is None:
        entry.result = Run.open(entry.directory).result()
        display.say(f"{entry.name}: done, avg {entry.result['avg']:.2f}, last {entry.result['last']:.2f}")
    else:
        display.say(f"{entry.name}: failed: {entry.failure}")
