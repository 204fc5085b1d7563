"""Runs that are already there: whether one of them is the run that would be begun now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.datasets.load import data_kind
from ..errors import UserError
from ..methods import METHODS
from ..methods.resolve import resolve_settings
from ..models.state import parse_state, read_state
from ..runs.match import learnt_from
from ..runs.run import CONFIG, Run
from ..runs.settings import RunSettings
from ..streams.protocols import parse_stream
from ..streams.stream import Stream

Present = Callable[[], Stream | None]
"""The stream with its images as they are now, loaded when it is asked for; None where they are not at hand."""


def find_run(settings: RunSettings, parent: Path, present: Present) -> Run | None:
    """The run of these settings right below a directory, of several the one that got furthest.

    Where the data is, how many threads compute and on which device may differ; what the images are may not. What
    cannot be read is passed over.
    """
    found = []
    for config in sorted(parent.glob(f"*/{CONFIG}")):
        with suppress(UserError):
            run = Run.read(config.parent)
            same = run.settings.choices() == settings.choices() and run.settings.tasks == settings.tasks
            if same and _learnt_as_now(run, present):
                found.append(run)
    return max(found, key=lambda run: (is_finished(run), len(run.finished_tasks())), default=None)


def is_finished(run: Run) -> bool:
    """Whether the result of all its tasks is on disk, and whole; nothing but the result is read."""
    with suppress(UserError):
        return run.result().get("complete") is True
    return False


def present_settings(own: RunSettings) -> dict[str, Any]:
    """The method's settings as they would be now, with its recipe and what was given by hand; or what is wrong."""
    kind = data_kind(parse_stream(own.stream).dataset)
    return resolve_settings(METHODS[own.method], kind, own.settings, own.epochs_scale, own.stream).model_dump(
        mode="json"
    )


def _learnt_as_now(run: Run, present: Present) -> bool:
    """Whether its finished tasks are what today's settings and images would give: recipes and folders may change."""
    done = run.finished_tasks()
    if not done:
        return True
    if parse_state(done[-1]).settings != present_settings(run.settings):
        return False
    stream = present()
    return stream is None or learnt_from([read_state(task) for task in done], stream)
