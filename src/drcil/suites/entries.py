"""The runs that a suite is made of: which are finished, which were begun, where the others will be."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, legible
from ..methods.spec import named_method
from ..report.about import About
from ..report.outcomes import Outcome
from ..runs.about import about
from ..runs.begin import unused
from ..runs.result import led_by
from ..runs.run import Run
from ..runs.settings import RunSettings
from .datasets import Datasets
from .reuse import KnownRuns, is_finished, run_key

_LONG = 100
"""Characters of details in the name of a directory."""


@dataclass(frozen=True)
class Wanted:
    """A run that is asked for, read in one of its ways."""

    method: str
    """As it was named, perhaps with a readout."""
    settings: RunSettings
    details: tuple[str, ...] = ()
    """What tells it from other runs of the method, in words: its stream, a setting, the class order."""

    @functools.cached_property
    def key(self) -> str:
        """The same for all that one run answers."""
        return run_key(self.settings)


@dataclass
class Entry:
    """One run of a suite, and what has become of it."""

    settings: RunSettings
    directory: Path
    begun: bool
    """Whether the directory is this run's already."""
    readings: dict[str, str | None]
    """The methods, as they were named, that are this run read in different ways, and their readouts."""
    result: dict[str, Any] | None = None
    failure: str | None = None
    details: tuple[str, ...] = ()

    @functools.cached_property
    def about(self) -> About:
        """How a finished run was carried out."""
        return about(Run(self.directory, self.settings)).brief()

    @property
    def name(self) -> str:
        return ", ".join([" and ".join(self.readings), *self.details, f"seed {self.settings.seed}"])

    def outcome(self, method: str) -> Outcome:
        """What became of one of the methods."""
        result = None if self.result is None else led_by(self.result, self.readings[method])
        told = None if self.result is None else self.about
        place, own = legible(str(self.directory)), self.settings
        return Outcome(method, own.seed, place, result, self.failure, told, own.order_seed)


def require_once(methods: Sequence[str]) -> None:
    """No name is given twice."""
    for method in methods:
        if methods.count(method) > 1:
            raise UserError(f"'{method}' is given {methods.count(method)} times; name each method once")


def may_choose_memory(method: str) -> bool:
    """A lower bound has no memory and an upper bound has all images, whatever the others get."""
    return named_method(method)[0].build.memory is None


def share_cores(settings: RunSettings, threads: int | None) -> RunSettings:
    """Runs use what their engine allows each, unless it is said how many threads they may use."""
    if threads is None or settings.threads is not None:
        return settings
    return settings.model_copy(update={"threads": threads})


def plan_entries(wanted: Iterable[Wanted], parent: Path, known: KnownRuns, datasets: Datasets) -> dict[str, Entry]:
    """An entry for each run, by its key, with its result if it is finished. Those that train the same share a run."""
    entries: dict[str, Entry] = {}
    taken: set[Path] = set()
    for one in wanted:
        settings = one.settings
        if one.key in entries:
            entries[one.key].readings[one.method] = settings.readout
            continue
        run = known.find(settings, functools.partial(datasets.identity, settings))
        if run is None:
            directory = unused(parent / _directory_name(one), taken)
            taken.add(directory)
        else:
            directory = run.directory
        result = run.result() if run is not None and is_finished(run) else None
        entries[one.key] = Entry(
            settings, directory, run is not None, {one.method: settings.readout}, result, details=one.details
        )
    return entries


def _directory_name(one: Wanted) -> str:
    """The run's own name; with what tells it from others, unless that is only its stream."""
    own = one.settings
    told = [detail for detail in one.details if detail != own.stream]
    words = re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(told))[:_LONG]
    return own.name if not words else f"{own.method}-{own.matter}-{words}-seed{own.seed}"
