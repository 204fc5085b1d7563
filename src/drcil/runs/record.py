"""What a run keeps of a finished task beside its model: where it stands in the run, and what was measured.

Each record names the one before it, so that a task's directory that was exchanged or edited is noticed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UserError
from ..metrics import History, TaskPrediction
from ..models.state import STATE, TASKS, ModelState, misfit, parse_state, read_state
from ..reading import checksum

PREDICTIONS = "predictions.safetensors"


class TaskFigures(BaseModel):
    """The task as ``result.json`` tells of it; ``readouts``: the size of its net and more, by readout."""

    model_config = ConfigDict(extra="forbid")

    number: int = Field(ge=1)
    classes: list[str]
    new_images: int = Field(ge=0)
    class_images: list[int] | None = None
    """Of which so many are of each new class; None: a run of before this was kept."""
    memory_images: int = Field(ge=0)
    readouts: dict[str, dict[str, float | None]]
    seconds: float = Field(ge=0)
    learning_seconds: float = Field(ge=0)


class TaskRecord(BaseModel):
    """The entries that a run adds to ``state.json``."""

    run: dict[str, Any]
    """The settings that cannot change halfway."""
    data_digest: str
    """Of the images that it was learnt from."""
    previous: str | None
    """The checksum of what the task before kept; None: it is the first."""
    stream_tasks: int = Field(ge=1)
    versions: dict[str, str]
    task: TaskFigures


@dataclass(frozen=True)
class FinishedTask:
    """A directory below ``tasks``: a model, and the record of how it came to be."""

    directory: Path
    model: ModelState
    record: TaskRecord
    checksum: str
    """Of all that the two say."""


def task_directories(run: Path) -> list[Path]:
    """Where the finished tasks of a run are, in order."""
    found = [task for task in (run / TASKS).glob("*") if re.fullmatch("[0-9]{2,}", task.name)]
    done = {int(task.name): task for task in found}
    missing = sorted(set(range(1, len(done) + 1)) - done.keys())
    if missing:
        raise UserError(f"{run} is incomplete: task {missing[0]} is missing, but later ones are there")
    return [done[number] for number in sorted(done)]


def finished_tasks(run: Path) -> list[FinishedTask]:
    """The finished tasks of a run in order, each the successor of the one before it."""
    tasks: list[FinishedTask] = []
    for number, directory in enumerate(task_directories(run), start=1):
        task = _read(directory)
        before = tasks[-1] if tasks else None
        if task.record.task.number != number:
            raise UserError(f"{directory} is not the run's task {number}: it holds task {task.record.task.number}")
        if task.record.previous != (before.checksum if before else None):
            follows = f"what is in {before.directory}" if before else "nothing"
            raise UserError(f"{directory} does not follow {follows}: one of them was exchanged or edited")
        tasks.append(task)
    return tasks


def _read(directory: Path) -> FinishedTask:
    values = read_state(directory)
    try:
        record = TaskRecord.model_validate(values)
    except ValidationError as error:
        raise misfit(directory, error) from None
    return FinishedTask(directory, parse_state(directory), record, checksum(values))


def history(tasks: Sequence[FinishedTask], predictions: Sequence[Mapping[str, Any]], readout: str) -> History:
    """What a readout answered after each task."""
    records = []
    for task, kept in zip(tasks, predictions, strict=True):
        try:
            records.append(TaskPrediction(kept["labels"].numpy(), kept[f"{readout}.classes"].numpy()))
        except KeyError as error:
            raise UserError(f"{task.directory / PREDICTIONS} does not fit {STATE}: {error} is missing") from None
    try:
        return History(records, tasks[-1].model.tasks, _images(tasks))
    except ValueError as error:
        place = os.path.commonpath([task.directory for task in tasks])
        raise UserError(f"the predictions in {place} do not fit its models: {error}") from None


def _images(tasks: Sequence[FinishedTask]) -> list[int] | None:
    """How many images each class was trained with when it was new; None where a task does not say."""
    images: list[int] = []
    for task in tasks:
        if task.record.task.class_images is None:
            return None
        images += task.record.task.class_images
    return images
