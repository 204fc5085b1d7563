"""The runs that a comparison is made of: which are finished, which were begun, where the others will be."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.identity import DataIdentity, data_identity
from ..errors import UserError, legible
from ..methods.spec import named_method
from ..report.comparison import Outcome
from ..runs.begin import unused
from ..runs.result import led_by
from ..runs.settings import RunSettings
from ..streams.stream import Stream
from .reuse import find_run, is_finished

Load = Callable[[], Stream]
"""The stream that all runs of a comparison learn; or the error that says why it cannot be had."""


@dataclass
class Entry:
    """One run of a comparison, and what has become of it."""

    settings: RunSettings
    directory: Path
    begun: bool
    """Whether the directory is this run's already."""
    readings: dict[str, str | None]
    """The methods, as they were named, that are this run read in different ways, and their readouts."""
    result: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{' and '.join(self.readings)}, seed {self.settings.seed}"

    def outcome(self, method: str) -> Outcome:
        """What became of one of the methods."""
        result = None if self.result is None else led_by(self.result, self.readings[method])
        return Outcome(method, self.settings.seed, legible(str(self.directory)), result, self.failure)


def require_once(methods: Sequence[str]) -> None:
    """No name is given twice."""
    for method in methods:
        if methods.count(method) > 1:
            raise UserError(f"'{method}' is given {methods.count(method)} times; name each method once")


def may_choose_memory(method: str) -> bool:
    """A lower bound has no memory and an upper bound has all images, whatever the others get."""
    return named_method(method)[0].build.memory is None


def share_cores(settings: RunSettings, jobs: int) -> RunSettings:
    """Runs at the same time share the cores, unless it is said how many each may use."""
    if jobs == 1 or settings.threads is not None:
        return settings
    return settings.model_copy(update={"threads": max(1, (os.cpu_count() or 1) // jobs)})


def at_hand(load: Load) -> Stream | None:
    """The stream, if its data is there; where it is gone, what was learnt from it still can be compared."""
    with suppress(UserError):
        return load()
    return None


def plan_entries(chosen: Sequence[tuple[str, RunSettings]], parent: Path, load: Load) -> list[Entry]:
    """An entry for each run, with its result if it is finished. All of them learn the stream that is loaded.

    ``chosen``: methods as they were named, and what is to be trained; those that train the same share a run.
    """

    @functools.cache
    def present() -> DataIdentity | None:
        stream = at_hand(load)
        return None if stream is None else data_identity(stream.dataset)

    entries: list[Entry] = []
    for name, settings in chosen:
        shared = next((entry for entry in entries if entry.settings.choices() == settings.choices()), None)
        if shared is not None:
            shared.readings[name] = settings.readout
            continue
        run = find_run(settings, parent, present)
        directory = unused(parent / settings.name) if run is None else run.directory
        result = run.result() if run is not None and is_finished(run) else None
        entries.append(Entry(settings, directory, run is not None, {name: settings.readout}, result))
    return entries
