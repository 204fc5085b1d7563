"""Runs a method with an engine that records stages instead of training."""

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

from ..data.image_set import ArraySource, ImageSet, empty_like
from ..data.user_images import infer_data_spec
from ..errors import UserError
from ..seeding import derive_seed, seeded_torch
from ..settings import MemoryBudget
from ..stages import Stage
from ..streams.memory import Memory
from ..streams.stream import Task, next_task
from .catalog import MethodSpec, resolve_settings
from .method import Architecture, Method
from .recipe import DEFAULT, recipe_kinds


class StageWork(NamedTuple):
    """What a stage will train: its name, its epochs, and the images of one epoch."""

    name: str
    epochs: int
    images: int


class Witness(Protocol):
    """Receives what a run will compute, in a dry run."""

    def begins(self) -> None:
        """Another task."""

    def trains(self, stage: Stage, images: int) -> None:
        """A stage with this number of images per epoch; its net has the final architecture, but not the weights."""

    def looks(self, net: nn.Module, images: int) -> None:
        """So many images go through a net."""

    def ends(self) -> None:
        """The task: all of it could be rehearsed."""


class DryRunEngine:
    """Records stages instead of training them. No image is read: every feature is that of an image of zeros."""

    rehearsing = True

    def __init__(self, witness: Witness | None = None) -> None:
        self.stages: list[StageWork] = []
        self._witness = witness

    def fit(self, stage: Stage) -> None:
        positions = stage.sampler(stage.data.labels, derive_seed("rehearsal", len(self.stages)))
        self.stages.append(StageWork(stage.name, stage.schedule.epochs, len(positions)))
        if self._witness is not None:
            self._witness.trains(stage, len(positions))

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """One row for all images, repeated without taking memory for each."""
        if self._witness is not None:
            self._witness.looks(net, len(images))
        zeros = torch.zeros(1, images.shape.channels, images.shape.size, images.shape.size)
        with torch.no_grad():
            pooled: Tensor = net.eval()(zeros).features.pooled
        return pooled.expand(len(images), -1)


def dry_run(
    method: Method, tasks: Sequence[Task], budget: MemoryBudget, witness: Witness | None = None
) -> list[list[StageWork]]:
    """The stages of each task, as a method of this kind and these settings will train them from its beginning.

    A ``UserError`` that learning would raise is raised here. Any other exception may be due to features that are
    not those of the images: then nothing is known of the task, nor of those after it, and their lists are empty.
    """
    fresh, memory = type(method)(method.settings, method.architecture), Memory(budget)
    # Their values make no difference, and after the first task their file may be gone.
    fresh.reads_weights = False
    work: list[list[StageWork]] = []
    # Draws here do not affect the draws of the run.
    with seeded_torch("rehearsal"):
        try:
            for task in tasks:
                work.append(_dry_run_task(fresh, memory, task, witness))
        except UserError:
            raise
        except Exception:
            work += [[] for _ in tasks[len(work) :]]
    return work


def dry_run_next(
    method: Method, memory: Memory, task: Task | None, more: ImageSet | None = None, classes: int = 0
) -> list[StageWork]:
    """The stages of one more task, if there is one, and then of more images of so many known classes.

    The method and its memory do not change. Empty if the stages cannot be predicted.
    """
    method_copy, exemplars = copy.deepcopy(method), Memory(memory.budget)
    exemplars.images, method_copy.reads_weights = memory.images, False
    with seeded_torch("rehearsal"):
        try:
            stages = _dry_run_task(method_copy, exemplars, task) if task else []
            return stages + (
                _dry_run_refresh(method_copy, exemplars, more, task.total if task else classes) if more else []
            )
        except UserError:
            raise
        except Exception:
            return []


def _dry_run_task(method: Method, memory: Memory, task: Task, witness: Witness | None = None) -> list[StageWork]:
    """The stages of one task; the memory then holds as many exemplars as it will."""
    engine = DryRunEngine(witness)
    if witness is not None:
        witness.begins()
    method.learn(replace(task, memory=memory.images or empty_like(task.new), budget=memory.budget), engine)
    memory.update(task.new, task.total, _constant_features)
    method.consolidate(memory.images or empty_like(task.new), partial(engine.features, method.herding_net()))
    if witness is not None:
        _report_inference(witness, method, memory, task)
        witness.ends()
    return engine.stages


def _report_inference(witness: Witness, method: Method, memory: Memory, task: Task) -> None:
    """Report the images that pass nets after a task: new images for herding, test images for evaluation."""
    if memory.budget.quota(task.total):
        witness.looks(method.herding_net(), len(task.new))
    for net in {id(readout.net): readout.net for readout in method.readouts().values()}.values():
        witness.looks(net, len(task.test))


def _dry_run_refresh(method: Method, memory: Memory, more: ImageSet, classes: int) -> list[StageWork]:
    """The stages of more images of known classes."""
    engine = DryRunEngine()
    memory.refresh(more, classes, _constant_features)
    method.refresh(more, memory.images or empty_like(more), engine)
    return engine.stages


def _constant_features(images: ImageSet) -> Tensor:
    """Features for a memory: the selection does not affect the number of exemplars."""
    return torch.ones(1, 1).expand(len(images), 1)


def stage_names(spec: MethodSpec) -> list[str]:
    """The stages of a first and a second task, with the first settings of its recipe, a small net and a few images.

    None, if the method cannot learn in that way.
    """
    source, budget = (
        ArraySource(torch.zeros(4, 1, 8, 8, dtype=torch.uint8)),
        MemoryBudget.parse(spec.build.memory or "all"),
    )
    images = ImageSet.of(source, np.arange(4), np.array([0, 0, 1, 1]))
    first = next_task(images, "ab", (), budget, infer_data_spec(source))
    second = next_task(images, "cd", first.sizes, budget, infer_data_spec(source))
    with suppress(UserError):
        settings = resolve_settings(spec, (recipe_kinds(spec.recipe) or [DEFAULT])[0], {})
        backbone = spec.backbone(infer_data_spec(source))
        method = spec.build(settings, Architecture(backbone, channels_in=1, image_size=8))
        work = dry_run(method, [first, second], budget)
        return list(dict.fromkeys(stage.name for task in work for stage in task))
    return []
