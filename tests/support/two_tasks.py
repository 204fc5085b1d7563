"""A method in its first two tasks, watched: what it hands to the engine, with settings unlike its recipe's.

Terms are checked by name, weight and value; stages by their images, what they train and what they freeze.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import drcil
from drcil.learner import Learner
from drcil.methods import METHODS, Architecture
from drcil.methods.catalog import resolve_settings
from drcil.nets.net import Net, Output
from drcil.seeding import generator
from drcil.stages import Stage
from drcil.streams.memory import first_of_each_class
from drcil.streams.samplers import shuffle
from drcil.streams.stream import Task
from support import reference_losses as reference
from support.stage_recorder import Seen, losses, recorded

OLD, NEW, ALL = 4, 2, 6
KEPT, GIVEN = 6, 20
"""Images of an old class and of a new one."""
BOTH, BALANCED = [KEPT] * OLD + [GIVEN] * NEW, [KEPT] * ALL
IMAGES = torch.randn(12, 1, 8, 8, generator=generator("images"))
LABELS = torch.arange(12) % ALL
EVERYTHING, OLD_BACKBONE = frozenset({""}), frozenset({"backbone.members.0"})


@dataclass
class Scene:
    """A learner after two tasks: its net before the second, and the stages of both by name."""

    learner: Learner
    previous: Net
    stages: dict[str, Seen]

    def stage(self, name: str) -> Stage:
        return self.stages[name].stage

    def output(self, stage: str) -> Output:
        return answer(self.stage(stage).net)

    def logits(self, stage: str) -> Tensor:
        return self.output(stage).logits.fused

    @property
    def taught(self) -> Output:
        """What the model of task 1 says."""
        return answer(self.previous)


def answer(net: nn.Module) -> Output:
    with torch.no_grad():
        output: Output = net.eval()(IMAGES)
    return output


def few(task: Task) -> Task:
    return replace(task, new=first_of_each_class(task.new, GIVEN))


def two_tasks(method: str, **settings: Any) -> Scene:
    """Four classes, then two, briefly; no two stages have the same schedule."""
    spec = METHODS[method]
    resolved = resolve_settings(spec, "digits", settings)
    idle = spec.build(resolved, Architecture("resnet-digits", 1, 8)).idle_settings(large_base=False)
    for index, name in enumerate(sorted(resolved.schedules().keys() - idle.keys() - {"two_stage"})):
        settings |= {f"{name}.lr": 0.05 + index / 1000, f"{name}.batch_size": 16}
    memory = None if METHODS[method].build.memory else str(KEPT * OLD)
    learner = Learner(method, epochs_scale=0.05, memory=memory, device="cpu", settings=settings)
    first, second = map(few, drcil.stream("digits-4/2")[:2])
    stages = recorded(learner, first)
    previous = copy.deepcopy(learner.method.net)
    stages += recorded(learner, second)
    return Scene(learner, previous, {seen.stage.name: seen for seen in stages})


def check_terms(stage: Stage, labels: Tensor = LABELS, **expected: tuple[float, float]) -> None:
    """The terms of a stage are these, with weight and value."""
    terms = losses(stage, IMAGES, labels)
    assert terms.keys() == expected.keys()
    for name, (weight, value) in expected.items():
        assert terms[name].weight == pytest.approx(weight), name
        assert terms[name].value.item() == pytest.approx(value, rel=1e-4, abs=1e-6), name


def check_stage(
    scene: Scene,
    name: str,
    counts: list[int],
    trained: Callable[[str], bool] = lambda name: True,
    frozen: frozenset[str] = frozenset(),
) -> None:
    """A stage sees so many images of each class, augmented and shuffled, and trains and freezes what is said."""
    stage, seen = scene.stage(name), scene.stages[name]
    assert seen.trained == {name for name, _ in stage.net.named_parameters() if trained(name)}
    assert seen.frozen == frozen
    if stage.groups is not None:
        assert [(group.lr_factor, group.weight_decay) for group in stage.groups] == [(1.0, None)]
    assert stage.data.counts(len(counts)).tolist() == counts
    assert stage.augment
    assert stage.sampler is shuffle
    assert stage.schedule == scene.learner.method.settings.schedules()[name]


def check_plain(scene: Scene, name: str, labels: Tensor = LABELS) -> None:
    """The stage's only term is cross-entropy."""
    check_terms(scene.stage(name), labels, classification=(1, reference.cross_entropy(scene.logits(name), labels)))


def check_first(scene: Scene, trained: Callable[[str], bool] = lambda name: True) -> None:
    """Task 1 sees its images alone, and learns by cross-entropy."""
    check_stage(scene, "first", [GIVEN] * OLD, trained)
    check_plain(scene, "first", LABELS % OLD)


def beside_old_backbone(name: str) -> bool:
    """Whether a parameter of an expanded net is not of its frozen backbone."""
    return not name.startswith("backbone.members.0.")
