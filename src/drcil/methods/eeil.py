"""EEIL: each old task's logits are distilled by themselves, and a balanced set evens out old and new classes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from ..heads import LinearHead
from ..nets.net import Net, Output
from ..objectives import cross_entropy, taskwise_distillation
from ..stages import Batch, Engine, Losses, Objective, Schedule, Stage, Step, StepHook, Term
from ..streams.stream import Task
from .catalog import method
from .method import Method, Settings
from .rebalancing import balanced_set


class EeilSettings(Settings):
    first: Schedule
    later: Schedule
    finetuning: Schedule
    """Of all weights, on equally many images of every class."""
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the distillation term."""
    distillation_form: Literal["binary", "softmax"]
    """Mean over tasks of binary cross-entropies, or sum over tasks of cross-entropies."""
    noise: float = Field(ge=0)
    """Standard deviation of the noise added to gradients in the first epoch of a stage; 0: none."""
    noise_decay: float = Field(ge=0)
    """The exponent by which the noise falls from epoch to epoch."""


class GradientNoise(StepHook):
    """Adds to every gradient standard normal noise times η / (1 + epoch)^γ."""

    def __init__(self, net: Net, scale: float, decay: float) -> None:
        super().__init__()
        # Kept out of the module tree: the parameters are the net's.
        self._nets = (net,)
        self._scale, self._decay = scale, decay

    def before_step(self, moment: Step) -> None:
        deviation = self._scale / (1 + moment.epoch) ** self._decay
        for parameter in self._nets[0].parameters():
            if parameter.grad is not None:
                noise = torch.randn(parameter.shape, generator=moment.generator)
                parameter.grad.add_(noise.to(parameter.grad, non_blocking=True), alpha=deviation)


@method("eeil", paper="Castro et al., End-to-End Incremental Learning, ECCV", year=2018)
class Eeil(Method):
    """Distillation task by task, then fine-tuning of all weights on a balanced set."""

    Settings = EeilSettings
    settings: EeilSettings

    def needs_memory(self) -> bool:
        """Without images of old classes there is nothing to balance with."""
        return True

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        return {} if self.settings.noise else {"noise_decay": "a noise above 0"}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            net = self.begin(task, LinearHead)
            engine.fit(Stage("first", net, task.new, cross_entropy, settings.first, hooks=self._hooks()))
            return
        net, teachers = self.net, {"teacher": copy.deepcopy(self.net)}
        net.head.grow(len(task.classes))
        data, objective = task.new.join(task.memory), self._objective(task.sizes[:-1])
        engine.fit(Stage("later", net, data, objective, settings.later, teachers=teachers, hooks=self._hooks()))
        # What was just learnt is in danger too, now that few of the new images are left: the new task is distilled.
        balanced, objective = balanced_set(net, task, engine), self._objective(task.sizes)
        teachers = {"teacher": copy.deepcopy(net)}
        engine.fit(
            Stage("finetuning", net, balanced, objective, settings.finetuning, teachers=teachers, hooks=self._hooks())
        )

    def _objective(self, sizes: Sequence[int]) -> Objective:
        """The loss that distils the tasks of these sizes, the first ones of the head."""
        settings, old = self.settings, sum(sizes)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(z, y) + w · D_T(z_teacher → z), task by task."""
            logits, teacher = output.logits.fused, teachers["teacher"].logits.fused
            distilled = taskwise_distillation(
                logits[:, :old], teacher, sizes, settings.temperature, settings.distillation_form
            )
            return {
                "classification": Term(F.cross_entropy(logits, batch.labels)),
                "distillation": Term(distilled, settings.distillation),
            }

        return objective

    def _hooks(self) -> list[StepHook]:
        settings = self.settings
        return [GradientNoise(self.net, settings.noise, settings.noise_decay)] if settings.noise else []
