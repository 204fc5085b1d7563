"""WA: distillation, then the rows of the new classes are given the mean length of the old ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import nn

from ..data.image_set import ImageSet
from ..heads import LinearHead
from ..nets.net import Net
from ..objectives import ce_and_distillation, class_shares, cross_entropy
from ..stages import Engine, Schedule, Stage, Step, StepHook
from ..streams.stream import Task
from .catalog import method
from .method import Method, Settings
from .rebalancing import align_weights, classifier_of


class WaSettings(Settings):
    first: Schedule
    later: Schedule
    temperature: float = Field(gt=0)
    weighting: Literal["lambda", "sum"]
    """(1 - λ) CE + λ KD with λ = K / N, or CE + w KD with w the setting ``distillation``."""
    distillation: float = Field(ge=0)
    nonnegative: bool
    """Whether the classifier's weights are clamped at zero after every step, so that long rows are high scores."""


class NonNegative(StepHook):
    """Keeps a layer's weights at zero or above."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        # Kept out of the module tree: the layer is the net's.
        self._layers = (layer,)

    def after_step(self, moment: Step) -> None:
        self._layers[0].weight.clamp_(min=0)


@method(
    "wa", paper="Zhao et al., Maintaining Discrimination and Fairness in Class Incremental Learning, CVPR", year=2020
)
class Wa(Method):
    """Distillation, then weight aligning: new rows get the mean length of old ones."""

    Settings = WaSettings
    settings: WaSettings

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        return {} if self.settings.weighting == "sum" else {"distillation": "weighting=sum"}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            net = self.begin(task, LinearHead)
            engine.fit(Stage("first", net, task.new, cross_entropy, settings.first, hooks=self._hooks()))
            return
        net, previous = self.net, copy.deepcopy(self.net)
        net.head.grow(len(task.classes))
        weights = class_shares(task.old, task.total) if settings.weighting == "lambda" else (1.0, settings.distillation)
        objective = ce_and_distillation(settings.temperature, weights)
        data, teachers = task.new.join(task.memory), {"previous": previous}
        engine.fit(Stage("later", net, data, objective, settings.later, teachers=teachers, hooks=self._hooks()))
        align_weights(classifier_of(net), task.old)

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        return replace(super().refresh_stage(net, exemplars), hooks=self._hooks())

    def _hooks(self) -> list[StepHook]:
        return [NonNegative(classifier_of(self.net))] if self.settings.nonnegative else []
