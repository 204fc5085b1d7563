"""Runs that are already there: whether one of them is the run that would be begun now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.load import data_kind
from ..errors import UserError
from ..methods import METHODS
from ..methods.settings import resolve_settings
from ..protocols import parse_stream
from .model import parse_state
from .run import CONFIG, Run
from .settings import RunSettings


def find_run(settings: RunSettings, parent: Path) -> Run | None:
    """The run of these settings right below a directory, of several the one that got furthest."""
    found = [run for run in equal_runs(settings, parent) if run.settings.tasks == settings.tasks]
    return max(found, key=lambda run: (is_finished(run), len(run.finished_tasks())), default=None)


def is_finished(run: Run) -> bool:
    """Whether the result of all its tasks is on disk; nothing but the result is read."""
    return run.has_result() and bool(run.result()["complete"])


def equal_runs(settings: RunSettings, parent: Path) -> Iterator[Run]:
    """The runs right below a directory that learn what these settings say, however far they are meant to go.

    Where the data is, how many threads compute and on which device may differ. What cannot be read is passed over.
    """
    for config in sorted(parent.glob(f"*/{CONFIG}")):
        with suppress(UserError):
            run = Run.open(config.parent)
            if run.settings.choices() == settings.choices() and _learnt_as_now(run):
                yield run


def present_settings(own: RunSettings) -> dict[str, Any]:
    """The method's settings as they would be now, with its recipe and what was given by hand; or what is wrong."""
    kind = data_kind(parse_stream(own.stream).dataset)
    return resolve_settings(METHODS[own.method], kind, own.settings, own.epochs_scale).model_dump(mode="json")


def _learnt_as_now(run: Run) -> bool:
    """Whether its finished tasks were learnt with the settings of today: a recipe may have changed since."""
    done = run.finished_tasks()
    return not done or parse_state(done[-1]).settings == present_settings(run.settings)
