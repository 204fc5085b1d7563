"""Runs that are already there: whether one of them is the run that would be begun now."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.datasets.dataset import find_dataset
from ..data.identity import DataIdentity, difference
from ..errors import UserError
from ..methods import METHODS
from ..methods.resolve import resolve_settings
from ..runs.begin import RUNS
from ..runs.beginning import read_beginning, settings_kept
from ..runs.plain import plain
from ..runs.run import Run
from ..runs.settings import CONFIG, RunSettings
from ..streams.protocols import parse_stream

Present = Callable[[], DataIdentity | None]
"""What the dataset consists of now, found out when it is asked for; None where the images are not at hand."""


def run_key(settings: RunSettings) -> str:
    """Equal for settings of one run: where data is, on which device and with how many threads does not count, nor
    what is chosen and would have been anyway.
    """
    own = plain(settings)
    return json.dumps({**own.choices(), "tasks": own.tasks}, sort_keys=True)


class KnownRuns:
    """The runs right below a directory, in which they may go on, and finished ones of other places.

    What cannot be read is passed over.
    """

    def __init__(self, parent: Path, elsewhere: Iterable[Path] = ()) -> None:
        """``elsewhere``: runs, directories of runs, and those of suites."""
        self._runs: dict[str, list[Run]] = {}
        for config in sorted(parent.glob(f"*/{CONFIG}")):
            self._take(config, any_state=True)
        for place in elsewhere:
            for pattern in (CONFIG, f"*/{CONFIG}", f"{RUNS}/*/{CONFIG}"):
                for config in sorted(place.glob(pattern)):
                    self._take(config, any_state=False)

    def _take(self, config: Path, any_state: bool) -> None:
        with suppress(UserError):
            run = Run.read(config.parent)
            if any_state or is_finished(run):
                self._runs.setdefault(run_key(run.settings), []).append(run)

    def find(self, settings: RunSettings, present: Present) -> Run | None:
        """The run of these settings, of several the one that got furthest. What its images are may not differ."""
        found = []
        for run in self._runs.get(run_key(settings), []):
            with suppress(UserError):
                if _learnt_as_now(run, present):
                    found.append(run)
        return max(found, key=lambda run: (is_finished(run), len(run.finished_tasks())), default=None)


def is_finished(run: Run) -> bool:
    """Whether the result of all its tasks is on disk, and whole; nothing but the result is read."""
    with suppress(UserError):
        return run.result().get("complete") is True
    return False


def present_settings(own: RunSettings) -> dict[str, Any]:
    """The method's settings as they would be now, with its recipe and what was given by hand; or what is wrong."""
    spec, data = METHODS[own.method], find_dataset(parse_stream(own.stream).dataset)[0].spec
    backbone = spec.backbone(data, own.backbone)
    settings = resolve_settings(spec, data.kind, own.settings, own.epochs_scale, own.stream, backbone, own.schedule)
    return settings.model_dump(mode="json")


def _learnt_as_now(run: Run, present: Present) -> bool:
    """Whether its finished tasks are what today's settings and images would give: recipes and folders may change."""
    run.checked_tasks()
    begun = read_beginning(run.directory)
    if settings_kept(begun, run.settings.method) != present_settings(run.settings):
        return False
    data = present()
    return data is None or difference(begun.data, data) is None
