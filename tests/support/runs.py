"""Runs of tests: made in a directory, watched, and compared bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drcil.files import read_tensors
from drcil.methods import METHODS
from drcil.methods.dry_run import stage_names
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.train.events import Event, StageDone, StageStarted, StepDone

ENGINE = {"device": "cpu", "snapshot_seconds": 0}


class Stop(Exception):
    """Raised out of the middle of a run."""


def make_run(directory: Path, method: str, **options: Any) -> Run:
    """Three tasks of digits, a few steps per stage."""
    schedules = [f"{stage}.batch_size" for stage in stage_names(METHODS[method])]
    settings = {**dict.fromkeys(schedules, 64), **options.pop("settings", {})}
    defaults = {"stream": "digits-b0-5", "tasks": 3, "epochs_scale": 0.03, "engine": ENGINE, "settings": settings}
    return create_run(complete(RunSettings(method=method, **{**defaults, **options})), directory)


def outcome(directory: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for clocks and versions: every tensor, and the result."""
    result = Run.read(directory).result().to_json()
    for entry in (result, *result["per_task"]):
        for clock in ("seconds", "learning_seconds", "versions"):
            entry.pop(clock, None)
    files = sorted((directory / "tasks").glob("*/*.safetensors"))
    return {"result": result, **{str(file.relative_to(directory)): read_tensors(file)[0] for file in files}}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["result"] == other["result"]
    assert one.keys() == other.keys()
    for file in one.keys() - {"result"}:
        assert one[file].keys() == other[file].keys()
        for name, tensor in one[file].items():
            assert torch.equal(tensor, other[file][name]), f"{name} of {file}"


class Watch:
    """Counts what a run does, and stops it at the n-th event of a kind within a task."""

    def __init__(self) -> None:
        self.steps = 0
        self.restored: list[str] = []
        self.began_late: list[str] = []
        self.stop_at: tuple[type, int, int] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.steps += 1
        elif isinstance(event, StageDone) and event.restored:
            self.restored.append(event.stage)
        elif isinstance(event, StageStarted) and event.first_epoch:
            self.began_late.append(event.stage)
        if self.stop_at is not None and isinstance(event, self.stop_at[0]) and event.task == self.stop_at[1]:
            kind, task, left = self.stop_at
            self.stop_at = (kind, task, left - 1)
            if left == 1:
                raise Stop

    def session(self, directory: Path, stop_at: tuple[type, int, int]) -> None:
        self.stop_at = stop_at
        with pytest.raises(Stop):
            Run.open(directory).train(listener=self)
