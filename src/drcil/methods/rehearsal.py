"""A rehearsal: a method goes through its tasks with an engine that notes every stage and trains none."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..data.own import own_spec
from ..data.sources.imageset import ArraySource, ImageSet, empty_like
from ..errors import UserError
from ..keys import derive, randomness
from ..recipes import DEFAULT, recipe_kinds
from ..stages import Stage
from ..streams.budget import Budget
from ..streams.memory import Memory
from ..streams.next_task import next_task
from ..streams.stream import Task
from .base import Architecture, Method
from .resolve import resolve_settings
from .spec import MethodSpec


class StageWork(NamedTuple):
    """What a stage will train: its name, its epochs, and the images of one epoch."""

    name: str
    epochs: int
    images: int


class Witness(Protocol):
    """Who is told in a rehearsal what a run will compute."""

    def begins(self) -> None:
        """Another task."""

    def trains(self, stage: Stage, images: int) -> None:
        """A stage, with so many images in an epoch; its net is as it will be, but for its weights."""

    def looks(self, net: nn.Module, images: int) -> None:
        """So many images go through a net."""

    def ends(self) -> None:
        """The task: all of it could be rehearsed."""


class RehearsalEngine:
    """Notes the stages that it is asked to train. No image is read: every feature is that of an image of zeros."""

    rehearsing = True

    def __init__(self, witness: Witness | None = None) -> None:
        self.stages: list[StageWork] = []
        self._witness = witness

    def fit(self, stage: Stage) -> None:
        positions = stage.sampler(stage.data.labels, derive("rehearsal", len(self.stages)))
        self.stages.append(StageWork(stage.name, stage.schedule.epochs, len(positions)))
        if self._witness is not None:
            self._witness.trains(stage, len(positions))

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """One row for all images, repeated without taking memory for each."""
        if self._witness is not None:
            self._witness.looks(net, len(images))
        zeros = torch.zeros(1, images.source.channels, images.source.size, images.source.size)
        with torch.no_grad():
            pooled: Tensor = net.eval()(zeros).features.pooled
        return pooled.expand(len(images), -1)


def rehearse(
    method: Method, tasks: Sequence[Task], budget: Budget, witness: Witness | None = None
) -> list[list[StageWork]]:
    """The stages of each task, as a method of this kind and these settings will train them from its beginning.

    A ``UserError`` that learning would raise is raised here. Any other exception may be due to features that are
    not those of the images: then nothing is known of the task, nor of those after it, and their lists are empty.
    """
    fresh, memory = type(method)(method.settings, method.architecture), Memory(budget)
    # Their values make no difference, and after the first task their file may be gone.
    fresh.reads_weights = False
    work: list[list[StageWork]] = []
    # Whatever is drawn here, the run draws what it would have drawn.
    with randomness("rehearsal"):
        try:
            for task in tasks:
                work.append(_rehearsed(fresh, memory, task, witness))
        except UserError:
            raise
        except Exception:
            work += [[] for _ in tasks[len(work) :]]
    return work


def rehearse_next(
    method: Method, memory: Memory, task: Task | None, more: ImageSet | None = None, classes: int = 0
) -> list[StageWork]:
    """The stages of one more task, if there is one, and then of more images of so many known classes.

    The method and its memory stay as they are. Empty, if it cannot be foretold.
    """
    again, kept = copy.deepcopy(method), Memory(memory.budget)
    kept.images, again.reads_weights = memory.images, False
    with randomness("rehearsal"):
        try:
            stages = _rehearsed(again, kept, task) if task else []
            return stages + (_refreshed(again, kept, more, task.total if task else classes) if more else [])
        except UserError:
            raise
        except Exception:
            return []


def _rehearsed(method: Method, memory: Memory, task: Task, witness: Witness | None = None) -> list[StageWork]:
    """The stages of one task; the memory then holds as many exemplars as it will."""
    engine = RehearsalEngine(witness)
    if witness is not None:
        witness.begins()
    method.learn(replace(task, memory=memory.images or empty_like(task.new), budget=memory.budget), engine)
    memory.update(task.new, task.total, _all_alike)
    method.consolidate(memory.images or empty_like(task.new), partial(engine.features, method.herding_net()))
    if witness is not None:
        _tell_looks(witness, method, memory, task)
        witness.ends()
    return engine.stages


def _tell_looks(witness: Witness, method: Method, memory: Memory, task: Task) -> None:
    """What goes through nets once a task is learnt: new images to choose exemplars from, test images to be measured."""
    if memory.budget.quota(task.total):
        witness.looks(method.herding_net(), len(task.new))
    for net in {id(readout.net): readout.net for readout in method.readouts().values()}.values():
        witness.looks(net, len(task.test))


def _refreshed(method: Method, memory: Memory, more: ImageSet, classes: int) -> list[StageWork]:
    """The stages of more images of known classes."""
    engine = RehearsalEngine()
    memory.refresh(more, classes, _all_alike)
    method.refresh(more, memory.images or empty_like(more), engine)
    return engine.stages


def _all_alike(images: ImageSet) -> Tensor:
    """Features for a memory: which images are kept makes no difference to how many there are."""
    return torch.ones(1, 1).expand(len(images), 1)


def stage_names(spec: MethodSpec) -> list[str]:
    """The stages of a first and a second task, with the first settings of its recipe, a small net and a few images.

    None, if the method cannot learn in that way.
    """
    source, budget = ArraySource(torch.zeros(4, 1, 8, 8, dtype=torch.uint8)), Budget.parse(spec.build.memory or "all")
    images = ImageSet(source, np.arange(4), np.array([0, 0, 1, 1]))
    first = next_task(images, "ab", (), budget, own_spec(source))
    second = next_task(images, "cd", first.sizes, budget, own_spec(source))
    with suppress(UserError):
        settings = resolve_settings(spec, (recipe_kinds(spec.recipe) or [DEFAULT])[0], {})
        backbone = spec.backbone(own_spec(source))
        method = spec.build(settings, Architecture(backbone, channels_in=1, image_size=8))
        work = rehearse(method, [first, second], budget)
        return list(dict.fromkeys(stage.name for task in work for stage in task))
    return []
