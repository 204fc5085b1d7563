"""Task records and results: figures by readout, result.json.

Each record names the one before it, so that a task directory that was exchanged or edited is noticed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from ..errors import UserError, unknown_name
from ..files import checksum
from ..metrics import History, TaskPrediction, measure
from ..models.model_format import STATE, TASKS, ModelState, invalid_state, parse_state, read_state_json
from ..settings import RunSettings
from ..streams.protocols import parse_stream

PREDICTIONS = "predictions.safetensors"


class TaskSummary(BaseModel):
    """What a result says of a task besides its figures."""

    number: int = Field(ge=1)
    classes: list[str] = []
    new_images: int = Field(ge=0)
    class_images: list[int] | None = None
    """How many of them each new class has; None: not known."""
    memory_images: int = Field(ge=0)
    seconds: float = Field(ge=0)
    learning_seconds: float = Field(ge=0)


class TrainedTask(TaskSummary):
    """The task as its ``state.json`` describes it; ``readouts``: the size of the net and more, by readout."""

    model_config = ConfigDict(extra="forbid")

    classes: list[str]
    readouts: dict[str, dict[str, float | None]]


class TaskRecord(BaseModel):
    """The entry ``task_record`` of the ``state.json`` of a finished task."""

    model_config = ConfigDict(extra="forbid")

    run: dict[str, Any]
    """The settings that cannot change during a run."""
    data_digest: str
    """Of the images that the task was learnt from."""
    previous: str | None
    """The checksum of the state of the previous task; None: it is the first task."""
    stream_tasks: int = Field(ge=1)
    versions: dict[str, str]
    task: TrainedTask


@dataclass(frozen=True)
class FinishedTask:
    """A directory below ``tasks``: a model, and the record of how it was trained."""

    directory: Path
    model: ModelState
    record: TaskRecord
    checksum: str
    """Of ``state.json``."""


def is_task(name: str) -> bool:
    """Whether it is the name of the directory of a finished task."""
    return re.fullmatch("[0-9]{2,}", name) is not None


def task_directories(run: Path) -> list[Path]:
    """The directories of the finished tasks of a run, in order."""
    done = {int(task.name): task for task in (run / TASKS).glob("*") if is_task(task.name)}
    missing = sorted(set(range(1, len(done) + 1)) - done.keys())
    if missing:
        raise UserError(f"{run} is incomplete: task {missing[0]} is missing, but later ones are there")
    return [done[number] for number in sorted(done)]


def read_tasks(run: Path) -> list[FinishedTask]:
    """The finished tasks of a run in order, each the successor of the one before it."""
    tasks: list[FinishedTask] = []
    for number, directory in enumerate(task_directories(run), start=1):
        task = read_task(directory)
        before = tasks[-1] if tasks else None
        if task.record.task.number != number:
            raise UserError(f"{directory} is not the run's task {number}: it holds task {task.record.task.number}")
        if task.record.previous != (before.checksum if before else None):
            follows = f"what is in {before.directory}" if before else "nothing"
            raise UserError(f"{directory} does not follow {follows}: one of them was exchanged or edited")
        tasks.append(task)
    return tasks


def read_task(directory: Path) -> FinishedTask:
    values = read_state_json(directory)
    state = parse_state(directory, values)
    if state.task_record is None:
        raise UserError(f"{directory / STATE} does not describe a task of a run: it has no 'task_record'")
    try:
        record = TaskRecord.model_validate(state.task_record)
    except ValidationError as error:
        raise invalid_state(directory, error) from None
    return FinishedTask(directory, state, record, checksum(values))


def _history(tasks: Sequence[FinishedTask], predictions: Sequence[Mapping[str, Tensor]], readout: str) -> History:
    """The predictions of a readout after each task."""
    records = []
    for task, tensors in zip(tasks, predictions, strict=True):
        try:
            records.append(TaskPrediction(tensors["labels"].numpy(), tensors[f"{readout}.classes"].numpy()))
        except KeyError as error:
            raise UserError(f"{task.directory / PREDICTIONS} does not fit {STATE}: {error} is missing") from None
    try:
        return History(records, tasks[-1].model.tasks, _images(tasks))
    except ValueError as error:
        directory = os.path.commonpath([task.directory for task in tasks])
        raise UserError(f"the predictions in {directory} do not fit its models: {error}") from None


def _images(tasks: Sequence[FinishedTask]) -> list[int] | None:
    """How many images each class was first trained with; None where a task does not say."""
    images: list[int] = []
    for task in tasks:
        if task.record.task.class_images is None:
            return None
        images += task.record.task.class_images
    return images


_TOP_LEVEL = ("curve", "avg", "last", "forgetting", "matrix", "top5", "parameters")
"""The figures of the leading readout that ``result.json`` repeats at its top level."""


class _Figures(BaseModel):
    """The figures of a readout that reports cannot do without."""

    curve: list[float]
    avg: float
    last: float
    forgetting: float | None
    top5: list[float]
    matrix: list[list[float]]
    parameters: float
    per_task: list[dict[str, float | None]]


class RunResult(BaseModel):
    """The figures of a run after its last finished task."""

    model_config = ConfigDict(frozen=True)

    method: str
    stream: str
    seed: int
    order_seed: int
    profile: str
    settings: dict[str, Any]
    """Memory, backbone, image size, epochs, augmentation; ``method``: the settings of the method with its recipe."""
    classes: list[str] = []
    tasks: list[int]
    """The number of classes of each finished task."""
    complete: bool
    metric: str
    """By which methods are compared on the stream."""
    readout: str
    """The one that leads."""
    readouts: dict[str, dict[str, Any]]
    """Metrics by name, for each readout."""
    seconds: float
    per_task: list[TaskSummary]
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _check_figures(self) -> Self:
        if not isinstance(self.settings.get("memory"), str) or not isinstance(self.settings.get("backbone"), str):
            raise ValueError("'settings' has no memory and backbone")
        if self.readout not in self.readouts:
            raise ValueError(f"there is no readout '{self.readout}'")
        for values in self.readouts.values():
            figures = _Figures.model_validate(values)
            lengths = {len(figures.curve), len(figures.matrix), len(figures.per_task), len(self.per_task)}
            if lengths != {len(self.tasks)}:
                raise ValueError("the figures are not one for each task")
        return self

    def figure(self, name: str, readout: str | None = None) -> Any:
        """A metric of a readout (None: the one that leads) or ``seconds``; None where it was not measured."""
        if name == "seconds":
            return self.seconds
        return self.readouts[readout or self.readout].get(name)

    def led_by(self, readout: str | None) -> RunResult:
        """The same result, led by this readout (None: the first of the method)."""
        name = readout or next(iter(self.readouts))
        if name not in self.readouts:
            raise unknown_name(f"readout of '{self.method}'", name, self.readouts)
        return self.model_copy(update={"readout": name})

    def latest_figures(self) -> dict[str, dict[str, float | None]]:
        """By readout: all figures that are one number, after the last task."""
        latest = {}
        for readout, figures in self.readouts.items():
            values = {**figures, **figures["per_task"][-1]}
            latest[readout] = {
                name: value for name, value in values.items() if value is None or isinstance(value, int | float)
            }
        return latest

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``: the figures of the leading readout stand at the top level, too."""
        leading = self.readouts[self.readout]
        values = self.model_dump(mode="json")
        figures = zip(leading["curve"], leading["top5"], leading["matrix"], leading["per_task"], strict=True)
        for task, (accuracy, top5, row, extra) in zip(values["per_task"], figures, strict=True):
            task.update(accuracy=accuracy, top5=top5, per_task=row, **extra)
        return {**values, **{name: leading[name] for name in _TOP_LEVEL}}


def leading_metric(stream: str) -> str:
    """The metric by which methods are compared on a stream, unless another is named."""
    return "avg" if parse_stream(stream).tail is None else "task_avg"


def measure_run(
    settings: RunSettings, tasks: Sequence[FinishedTask], predictions: Sequence[Mapping[str, Tensor]]
) -> RunResult:
    """The result of the finished tasks, led by the readout that the settings name."""
    model, record = tasks[-1].model, tasks[-1].record
    summaries = [task.record.task for task in tasks]
    readouts = {}
    for name in model.readouts:
        readouts[name] = {
            **measure(_history(tasks, predictions, name)),
            "parameters": summaries[-1].readouts[name]["parameters"],
            "per_task": [task.readouts[name] for task in summaries],
        }
    schedule = {} if settings.schedule is None else {"schedule": settings.schedule}
    result = RunResult(
        method=settings.method,
        stream=settings.stream,
        seed=settings.seed,
        order_seed=settings.order_seed,
        profile=settings.profile,
        settings={
            "memory": model.memory.budget,
            "backbone": model.architecture.backbone,
            "image_size": model.images.size,
            "epochs_scale": settings.epochs_scale,
            **schedule,
            "augment": model.augment or model.settings.get("augment") or model.data.augment,
            "method": model.settings,
        },
        classes=list(model.classes),
        tasks=list(model.tasks),
        complete=len(tasks) >= min(settings.tasks or record.stream_tasks, record.stream_tasks),
        metric=leading_metric(settings.stream),
        readout=next(iter(readouts)),
        readouts=readouts,
        seconds=round(sum(task.seconds for task in summaries), 3),
        per_task=[TaskSummary.model_validate(task.model_dump()) for task in summaries],
        versions=record.versions,
    )
    return result.led_by(settings.readout)
