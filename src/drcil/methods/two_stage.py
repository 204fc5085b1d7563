"""Two-stage learning: what any method has learnt, then a balanced second stage of scales and newest rows.

The add-on ``two-stage`` for methods whose scores are logits. A task is learnt as the method has it. Then the backbone
is frozen, and a factor per class on the logits and the rows of the newest classes learn from images of all classes
alike. The factors are a part of their own: teachers and the next task see the net without them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..data.sources.imageset import ImageSet
from ..errors import UserError
from ..heads.cosine import CosineHead
from ..heads.per_task import PerTaskHead
from ..heads.scaled import ScaledHead, Scales
from ..nets.net import Net
from ..nets.output import Readout, fused_logits
from ..schedules import Schedule
from ..stages import Engine, Group, Moment, Stage, StepHook
from ..streams.samplers import class_balanced
from ..streams.stream import Task
from .base import Method
from .objectives import cross_entropy
from .parts import PARTS
from .remedies import classifier_of
from .settings import Settings
from .spec import ADDONS, Addon

STAGE = "two_stage"


class SecondStage(Schedule):
    """How the second stage learns. Weight decay and batch size are those of the first task, unless they are given."""

    epochs: int = Field(default=30, ge=1)
    lr: float = Field(default=0.1, gt=0)
    scale_rate: float = Field(default=0.1, gt=0)
    """The learning rate of the scales, as a share of that of the rows; in the first epoch both have the same."""
    scarce: int = Field(default=0, ge=0)
    """A later task of at most so many new images per class, on average, is learnt by the second stage alone."""


class TwoStageSettings(Settings):
    """What the add-on adds to a method's settings."""

    two_stage: SecondStage

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_first_task(cls, values: dict[str, Any]) -> dict[str, Any]:
        first, own = values.get("first", {}), values.get(STAGE, {})
        if not (isinstance(first, Mapping) and isinstance(own, Mapping)):
            return values
        shared = {key: first[key] for key in ("weight_decay", "batch_size") if key in first}
        return {**values, STAGE: {**shared, **own}}


class ScalesPart(Scales):
    """The scales of all classes seen, as a method keeps them."""

    def describe(self) -> dict[str, Any]:
        return {"part": "scales", "classes": len(self.values)}


@PARTS.register("scales")
def _scales(description: dict[str, Any]) -> ScalesPart:
    return ScalesPart(description["classes"])


class TwoStage(Method):
    """Stands before a method's class, and adds the second stage."""

    settings: TwoStageSettings

    def learn(self, task: Task, engine: Engine) -> None:
        own = self.settings.two_stage
        if task.number > 1 and len(task.new) <= own.scarce * len(task.classes):
            self._learn_nothing(task, engine)
        else:
            super().learn(task, engine)  # type: ignore[safe-super] # The method's own, which is not abstract.
        scales = self.parts.setdefault("scales", ScalesPart())
        assert isinstance(scales, ScalesPart)
        scales.to(next(self.net.parameters()).device).grow(len(task.classes))
        rows = newest_rows(self.net)
        groups = [
            Group([parameter for parameter, _ in rows]),
            Group([scales.values], lr_factor=own.scale_rate, first_lr_factor=1.0),
        ]
        scaled = self._scaled()
        engine.fit(
            Stage(
                STAGE,
                scaled,
                task.new.join(task.memory),
                cross_entropy,
                own,
                groups=groups,
                frozen=[*(part for part in scaled.children() if part is not scaled.head), self.net.head],
                sampler=class_balanced,
                hooks=[OldRowsStay(rows)],
            )
        )

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        """Against the loss of the second stage, whatever the method's own is."""
        return replace(super().refresh_stage(net, exemplars), objective=cross_entropy)

    def _learn_nothing(self, task: Task, engine: Engine) -> None:
        """The method's own steps without its training: the head grows, new rows start where it lets them start."""
        measured = {name: tensor.clone() for name, tensor in self.net.state_dict().items() if is_statistic(name)}
        super().learn(task, Untrained(engine))  # type: ignore[safe-super]
        # A method may begin statistics afresh for a stage that would measure them.
        for name, tensor in self.net.state_dict().items():
            if name in measured and measured[name].shape == tensor.shape:
                tensor.copy_(measured[name])

    def readouts(self) -> Mapping[str, Readout]:
        """The method's own, its logits scaled."""
        scaled, known = self._scaled(), super().readouts()
        name, lead = next(iter(known.items()))
        if lead.net is not self.net or lead.scores is not fused_logits:
            raise UserError(f"'two-stage' scales the logits of the net, but the readout '{name}' does not read those")
        # Whoever reads features of the net goes on to share one pass with the logits.
        return {
            name: Readout(scaled, readout.scores) if readout.net is self.net else readout
            for name, readout in known.items()
        }

    def _scaled(self) -> Net:
        """The net with its scales: tensors are shared, so that training one is training the other."""
        scales, classes = self.parts["scales"], self.net.head.classes
        assert isinstance(scales, ScalesPart)
        if len(scales.values) != classes:
            raise UserError(f"there are scales for {len(scales.values)} classes, but the net has {classes}")
        return self.net.under(ScaledHead(self.net.head, scales))


def newest_rows(net: Net) -> list[tuple[nn.Parameter, int]]:
    """The parameters that hold the rows of the newest classes, and with which row those begin."""
    head = net.head
    if isinstance(head, CosineHead):
        return [(head.get_parameter("new_rows"), 0)]
    if isinstance(head, PerTaskHead):
        return [(parameter, 0) for parameter in head.newest().parameters()]
    classifier, first = classifier_of(net), head.classes - head.tasks[-1]
    return [(parameter, first) for parameter in classifier.parameters()]


def is_statistic(name: str) -> bool:
    """Whether a tensor of this name is what a batch normalisation has measured."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


class OldRowsStay(StepHook):
    """Puts the rows of old classes back, which share a parameter with those that learn: weight decay moves them too."""

    def __init__(self, rows: list[tuple[nn.Parameter, int]]) -> None:
        super().__init__()
        # Kept out of the module tree: the parameters are the net's, only the copies are the hook's own.
        self._rows = tuple(rows)
        for number, (parameter, first) in enumerate(rows):
            self.register_buffer(f"old_{number}", parameter.detach()[:first].clone())

    def after_step(self, moment: Moment) -> None:
        for number, (parameter, first) in enumerate(self._rows):
            parameter[:first] = self.get_buffer(f"old_{number}")


class Untrained:
    """An engine that trains nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.rehearsing = engine, engine.rehearsing

    def fit(self, stage: Stage) -> None:
        stage.net.eval()

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        return self._engine.features(net, images)


@functools.cache
def with_two_stages(base: type[Method]) -> type[Method]:
    """The class of a method with the second stage."""
    settings = type(f"TwoStage{base.Settings.__name__}", (TwoStageSettings, base.Settings), {})
    return type(f"TwoStage{base.__name__}", (TwoStage, base), {"Settings": settings, "__doc__": base.__doc__})


def obstacle(base: type[Method]) -> str | None:
    """Why a method cannot take the second stage."""
    if issubclass(base, TwoStage):
        return "it has a second stage already"
    return None if base.reads_logits else "the second stage scales logits, and it does not classify by logits"


ADDONS.register("two-stage")(
    Addon(
        "Second stage: a scale per class and the newest rows, from class-balanced images",
        "methods with logits",
        with_two_stages,
        obstacle,
    )
)
