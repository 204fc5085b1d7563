"""What a run is going to do, known before anything is written: whether it can begin, and how much work it is."""

from __future__ import annotations

import numpy as np

from ..learner import ImageShape, Learner
from ..methods import Method, Settings
from ..schedules import Schedule
from ..streams.budget import Budget
from ..streams.stream import Stream
from ..train import Journal, Listener
from ..train.events import silence
from .settings import RunSettings

StageWork = tuple[int, ...]
"""Image-epochs (images times epochs) of the stages of one task, in order."""


def plan_run(run: RunSettings, stream: Stream) -> list[StageWork]:
    """The work of every task; or the error that would end the run once its directory exists."""
    learner = start_learner(run, stream)
    return planned_stages(learner.method, stream, run.tasks)


def start_learner(
    run: RunSettings, stream: Stream, listener: Listener = silence, journal: Journal | None = None
) -> Learner:
    """The learner of a run, before its first task.

    One that can be started on the stream has a known method and backbone, valid settings, an augmentation that
    exists, a device that is there, and a memory that will do for all classes.
    """
    learner = Learner(
        run.method,
        backbone=run.backbone,
        memory=run.memory,
        augment=run.augment,
        seed=run.seed,
        epochs_scale=run.epochs_scale,
        settings=run.settings,
        listener=listener,
        journal=journal,
        **run.engine.model_dump(),
    )
    classes = sum(stream.sizes[: run.tasks])
    learner.start(stream.dataset.spec, ImageShape.of(stream.dataset.train.source), stream.budget, classes=classes)
    return learner


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
