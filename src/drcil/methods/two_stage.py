"""Two-stage learning: what any method has learnt, then a balanced second stage of scales and newest rows.

The add-on ``two-stage`` for methods whose scores are logits. A task is learnt as the method has it. Then the backbone
is frozen, and a factor per class on the logits and the rows of the newest classes learn from images of all classes
alike. The factors are a separate part: teachers and the next task see the net without them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator
from torch import nn

from ..data.image_set import ImageSet
from ..errors import UserError
from ..heads.cosine import CosineHead
from ..heads.per_task import PerTaskHead
from ..heads.scaled import ScaledHead, Scales
from ..nets.net import Net, Readout
from ..nets.parts import PARTS, Part
from ..objectives import cross_entropy
from ..stages import Engine, ParamGroup, Schedule, Stage, Step, StepHook
from ..streams.samplers import class_balanced
from ..streams.stream import Task
from .catalog import ADDONS, Addon
from .method import Method, Settings
from .rebalancing import classifier_of

STAGE = "two_stage"


class SecondStage(Schedule):
    """How the second stage learns. Weight decay and batch size are those of the first task, unless they are given."""

    epochs: int = Field(default=30, ge=1)
    lr: float = Field(default=0.1, gt=0)
    scale_rate: float = Field(default=0.1, gt=0)
    """The learning rate of the scales, as a share of that of the rows; in the first epoch both have the same."""


class TwoStageSettings(Settings):
    """What the add-on adds to a method's settings."""

    two_stage: SecondStage

    @model_validator(mode="before")
    @classmethod
    def _default_to_first_task(cls, values: dict[str, Any]) -> dict[str, Any]:
        first, second = values.get("first", {}), values.get(STAGE, {})
        if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
            return values
        shared = {key: first[key] for key in ("weight_decay", "batch_size") if key in first}
        return {**values, STAGE: {**shared, **second}}


@PARTS.register("scales")
class ScalesPart(Scales, Part):
    """The scales of all classes seen, as a method keeps them."""

    def describe(self) -> dict[str, Any]:
        return {"classes": len(self.values)}


class TwoStage(Method):
    """Stands before a method's class, and adds the second stage."""

    settings: TwoStageSettings

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings.two_stage
        super().learn(task, engine)  # type: ignore[safe-super] # The method's ``learn``, which is not abstract.
        self.parts.setdefault("scales", ScalesPart())
        scales = self.part("scales", ScalesPart)
        scales.to(next(self.net.parameters()).device).grow(len(task.classes))
        rows = newest_rows(self.net)
        groups = [
            ParamGroup([parameter for parameter, _ in rows]),
            ParamGroup([scales.values], lr_factor=settings.scale_rate, first_lr_factor=1.0),
        ]
        scaled = self._scaled()
        engine.fit(
            Stage(
                STAGE,
                scaled,
                task.new.join(task.memory),
                cross_entropy,
                settings,
                groups=groups,
                frozen=[*(part for part in scaled.children() if part is not scaled.head), self.net.head],
                sampler=class_balanced,
                hooks=[OldRowsStay(rows)],
            )
        )

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        """For the loss of the second stage, independent of the method's loss."""
        return replace(super().refresh_stage(net, exemplars), objective=cross_entropy)

    def readouts(self) -> Mapping[str, Readout]:
        """The method's readouts, with scaled logits. Readouts of the net's features share one pass with the logits."""
        scaled = self._scaled()
        return {
            name: Readout(scaled, readout.scores) if readout.net is self.net else readout
            for name, readout in super().readouts().items()
        }

    def _scaled(self) -> Net:
        """The net with its scales: tensors are shared, so that training one is training the other."""
        scales, classes = self.part("scales", ScalesPart), self.net.head.classes
        if len(scales.values) != classes:
            raise UserError(f"there are scales for {len(scales.values)} classes, but the net has {classes}")
        return self.net.under(ScaledHead(self.net.head, scales))


def newest_rows(net: Net) -> list[tuple[nn.Parameter, int]]:
    """The parameters with the rows of the newest classes, and the index of the first of these rows."""
    head = net.head
    if isinstance(head, CosineHead):
        return [(head.get_parameter("new_rows"), 0)]
    if isinstance(head, PerTaskHead):
        return [(parameter, 0) for parameter in head.newest().parameters()]
    classifier, first = classifier_of(net), head.classes - head.tasks[-1]
    return [(parameter, first) for parameter in classifier.parameters()]


class OldRowsStay(StepHook):
    """Restores the rows of old classes, which share a parameter with trained rows: weight decay moves them too."""

    def __init__(self, rows: list[tuple[nn.Parameter, int]]) -> None:
        super().__init__()
        # Not in the module tree: the parameters belong to the net, only the copies to the hook.
        self._rows = tuple(rows)
        for number, (parameter, first) in enumerate(rows):
            self.register_buffer(f"old_{number}", parameter.detach()[:first].clone())

    def after_step(self, moment: Step) -> None:
        for number, (parameter, first) in enumerate(self._rows):
            parameter[:first] = self.get_buffer(f"old_{number}")


@functools.cache
def with_two_stages(base: type[Method]) -> type[Method]:
    """The class of a method with the second stage."""
    settings = type(f"TwoStage{base.Settings.__name__}", (TwoStageSettings, base.Settings), {})
    return type(f"TwoStage{base.__name__}", (TwoStage, base), {"Settings": settings, "__doc__": base.__doc__})


def reason_not_applicable(base: type[Method]) -> str | None:
    """Why a method cannot take the second stage."""
    if issubclass(base, TwoStage):
        return "it has a second stage already"
    reads_logits = base.readouts is Method.readouts if base.reads_logits is None else base.reads_logits
    return None if reads_logits else "the second stage scales logits, and it does not classify by the logits of its net"


ADDONS.register("two-stage")(
    Addon(
        "Second stage: a scale per class and the newest rows, from class-balanced images",
        with_two_stages,
        reason_not_applicable,
    )
)
