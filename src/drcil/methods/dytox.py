"""DyTox: a transformer with a learnt token and a classifier for every task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pydantic import Field
from torch import nn

from ..data.image_set import ImageSet
from ..heads.head import Head
from ..heads.per_task import PerTaskHead
from ..nets.net import Net, Output
from ..nets.task_attention import TaskNet
from ..objectives import binary_cross_entropy, class_shares, kl_distillation
from ..stages import Batch, Engine, Losses, ParamGroup, Schedule, Stage, Term
from ..streams.samplers import Sampler, repeated, shuffle
from ..streams.stream import Task
from .catalog import method
from .der import auxiliary_targets
from .method import Method, Settings
from .rebalancing import balanced_set


class DytoxSettings(Settings):
    first: Schedule
    later: Schedule
    finetuning: Schedule
    divergence: float = Field(ge=0)
    """Weight of the classifier that sees the newest embedding alone."""
    repeats: int = Field(ge=1)
    """Augmented copies of each image that an epoch takes, of so much fewer images; 1: every image once."""


@method(
    "dytox",
    paper="Douillard et al., DyTox: Transformers for Continual Learning with DYnamic TOken eXpansion, CVPR",
    year=2022,
)
class Dytox(Method):
    """A token and a classifier for every task; a transformer and one attention block that all tasks share."""

    Settings = DytoxSettings
    settings: DytoxSettings
    family = "transformer"
    head = "per-task"

    @property
    def net(self) -> TaskNet:
        return self.part("net", TaskNet)

    def new_net(self, head: Callable[[int], Head]) -> TaskNet:
        plain = super().new_net(head)
        return TaskNet(plain.backbone, plain.head)

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            net = self.begin(task, PerTaskHead)
            engine.fit(Stage("first", net, task.new, classification, settings.first, sampler=self._sampler()))
            return
        net, teachers = self.net, {"previous": copy.deepcopy(self.net)}
        old = {*net.decoder.tokens.parameters(), *net.head.parameters()}
        net.grow(len(task.classes))
        net.diverge(len(task.classes) + 1)
        engine.fit(
            Stage(
                "later",
                net,
                task.new.join(task.memory),
                self._later_objective(task),
                settings.later,
                teachers=teachers,
                groups=[all_but(old, net)],
                sampler=self._sampler(),
            )
        )
        net.divergence = None
        if len(task.memory):
            encoder = net.backbone
            groups = [all_but({*encoder.parameters()}, net)]
            data = balanced_set(net, task, engine)
            engine.fit(
                Stage("finetuning", net, data, classification, settings.finetuning, groups=groups, frozen=[encoder])
            )

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        return replace(super().refresh_stage(net, exemplars), objective=classification)

    def _sampler(self) -> Sampler:
        return shuffle if self.settings.repeats == 1 else partial(repeated, repeats=self.settings.repeats)

    def _later_objective(self, task: Task) -> Callable[[Output, Mapping[str, Output], Batch], Losses]:
        learning, keeping = class_shares(task.old, task.total)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """(1 - λ) BCE(z, y) + λ/K KL(z_old ‖ z[:K]) + w BCE(divergence, y'), y' = 0 for any old class."""
            logits, teacher_logits = output.logits, teachers["previous"].logits.fused
            distilled = kl_distillation(logits.fused[:, : task.old], teacher_logits) / task.old
            apart = binary_cross_entropy(logits.extras["divergence"], auxiliary_targets(batch.labels, task.old))
            return {
                "classification": Term(binary_cross_entropy(logits.fused, batch.labels), learning),
                "distillation": Term(distilled, keeping),
                "divergence": Term(apart, self.settings.divergence),
            }

        return objective


def classification(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    """BCE(z, y)."""
    return {"classification": Term(binary_cross_entropy(output.logits.fused, batch.labels))}


def all_but(excluded: set[nn.Parameter], net: nn.Module) -> ParamGroup:
    """Everything of a net but these parameters."""
    return ParamGroup([parameter for parameter in net.parameters() if parameter not in excluded])
