"""Watching a learner: the stages that a task takes, and their net before and after each."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from drcil.learner import Learner
from drcil.stages import Batch, Losses, Stage
from drcil.streams.stream import Task
from drcil.train import TrainingEngine
from support.engine import state


class Seen(NamedTuple):
    """A stage, the state of its net when it began and when it ended, and what it was to train and to freeze."""

    stage: Stage
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    trained: set[str]
    """Names of parameters."""
    frozen: set[str]
    """Names of modules; the net itself is ``""``."""

    def changed(self) -> set[str]:
        """The names of what the stage changed, statistics included."""
        return {name for name in self.after if not torch.equal(self.before[name], self.after[name])}


def recorded(learner: Learner, task: Task) -> list[Seen]:
    """Let the learner learn a task and say which stages that took."""
    seen: list[Seen] = []
    fit = TrainingEngine.fit

    def watched(engine: TrainingEngine, stage: Stage) -> None:
        before, trained, frozen = state(stage.net), trained_by(stage), frozen_by(stage)
        fit(engine, stage)
        seen.append(Seen(stage, before, state(stage.net), trained, frozen))

    with mock.patch.object(TrainingEngine, "fit", watched):
        learner.learn(task)
    return seen


def trained_by(stage: Stage) -> set[str]:
    """The names of the parameters that a stage trains: of its groups, or all that require a gradient."""
    names = {id(parameter): name for name, parameter in stage.net.named_parameters()}
    if stage.groups is None:
        return {name for name, parameter in stage.net.named_parameters() if parameter.requires_grad}
    return {names[id(parameter)] for group in stage.groups for parameter in group.parameters}


def frozen_by(stage: Stage) -> set[str]:
    """The names of the modules that a stage keeps in evaluation mode."""
    names = {id(module): name for name, module in stage.net.named_modules()}
    return {names[id(module)] for module in stage.frozen}


def losses(stage: Stage, images: Tensor, labels: Tensor) -> Losses:
    """A stage's terms for these images, teachers and net as they are now."""
    taught = {name: teacher.eval()(images) for name, teacher in stage.teachers.items()}
    return stage.objective(stage.net.eval()(images), taught, Batch(labels, labels))
