"""Runs that are already there: whether one of them is the run that would be begun now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.datasets.dataset import find_dataset
from ..data.identity import DataIdentity, difference
from ..errors import UserError
from ..methods import METHODS
from ..methods.resolve import resolve_settings
from ..runs.beginning import read_beginning, settings_kept
from ..runs.run import Run
from ..runs.settings import CONFIG, RunSettings
from ..streams.protocols import parse_stream

Present = Callable[[], DataIdentity | None]
"""What the dataset consists of now, found out when it is asked for; None where the images are not at hand."""


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
    spec, data = METHODS[own.method], find_dataset(parse_stream(own.stream).dataset)[0].spec
    backbone = spec.backbone(data, own.backbone)
    settings = resolve_settings(spec, data.kind, own.settings, own.epochs_scale, own.stream, backbone)
    return settings.model_dump(mode="json")


def _learnt_as_now(run: Run, present: Present) -> bool:
    """Whether its finished tasks are what today's settings and images would give: recipes and folders may change."""
    run.checked_tasks()
    begun = read_beginning(run.directory)
    if settings_kept(begun, run.settings.method) != present_settings(run.settings):
        return False
    data = present()
    return data is None or difference(begun.data, data) is None
