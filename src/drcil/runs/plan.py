"""What a run is going to do, known before anything is written: whether it can begin, and how much work it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..data.datasets.dataset import Dataset
from ..data.sources.imageset import ImageShape
from ..learner import Learner
from ..methods import Method, Settings
from ..models.model import Model, ModelOptions, new_model
from ..schedules import Schedule
from ..streams.budget import Budget
from ..streams.stream import Stream, make_stream
from .settings import RunSettings

StageWork = tuple[int, ...]
"""Image-epochs (images times epochs) of the stages of one task, in order."""


class Plan(NamedTuple):
    """The stream that a run learns, and the work of every task."""

    stream: Stream
    work: list[StageWork]


def plan_run(run: RunSettings, stream: Stream | None = None) -> Plan:
    """What the run will do; or the error that would end it once its directory exists. None: its stream is loaded."""
    stream = stream or load_stream(run)
    model = fresh_model(run, stream)
    # An engine needs a device and an augmentation that are there.
    Learner.of(model, run.engine).engine  # noqa: B018
    return Plan(stream, planned_stages(model.method, stream, run.tasks))


def load_stream(run: RunSettings, dataset: Dataset | None = None) -> Stream:
    """The run's stream, from its dataset or from the one given in its place."""
    return make_stream(
        run.stream,
        dataset,
        data_dir=Path(run.data) if run.data else None,
        image_size=run.image_size,
        order_seed=run.order_seed,
        memory=run.memory,
        validation=run.validation,
    )


def fresh_model(run: RunSettings, stream: Stream) -> Model:
    """The model that a run begins with: known method and backbone, valid settings, a memory that will do."""
    options = ModelOptions(run.method, run.backbone, run.memory, run.augment, run.seed, run.epochs_scale, run.settings)
    shape = ImageShape.of(stream.dataset.train.source)
    model = new_model(options, stream.dataset.spec, shape, stream.budget, run.stream)
    model.require_exemplars(sum(stream.sizes[: run.tasks]))
    return model


def planned_stages(method: Method, stream: Stream, tasks: int | None = None) -> list[StageWork]:
    """Of every stage of the first ``tasks`` (None: all): its epochs times the images it has."""
    budget = Budget.parse(method.memory) if method.memory else stream.budget
    work: list[StageWork] = []
    per_class = np.zeros(0, dtype=np.int64)
    for number in range(1, min(tasks or len(stream), len(stream)) + 1):
        task = stream.task(number)
        quota = budget.quota(len(per_class)) if len(per_class) else 0
        kept = per_class if quota is None else np.minimum(per_class, quota)
        new = task.new.counts(task.total)[task.old :]
        stages = method.stages(number)
        work.append(tuple(method.stage_images(name, new, kept) * _epochs(method.settings, name) for name in stages))
        per_class = np.concatenate([per_class, new])
    return work


def _epochs(settings: Settings, name: str) -> int:
    """The epochs of the schedule of this name; none where the settings leave the stage out."""
    schedule = getattr(settings, name)
    return schedule.epochs if isinstance(schedule, Schedule) else 0
