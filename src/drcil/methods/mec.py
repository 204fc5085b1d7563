"""MEC, model expansion and compression: a new backbone beside the frozen old one, then one net that imitates both.

It follows FOSTER, without its class weights. A residual head sits on the expanded model, the only stage where the
paper puts it. Its old branch stands for the previous, compressed model, or is merged from those of expanded models.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..heads.head import Head, Logits, pool
from ..heads.linear import LinearHead
from ..heads.residual import ResidualHead
from ..nets.backbone import Backbone, Features
from ..nets.expanded import ExpandedNet
from ..nets.net import Net, Output, Readout
from ..objectives import distillation
from ..stages import Batch, Engine, Losses, Schedule
from ..streams.stream import Task
from .expansion import auxiliary_term, compress, distillation_term, expand, largest_net, train_expanded
from .pipeline import RESIDUAL, Pipeline, PipelineSettings, register_pipeline


class MecSettings(PipelineSettings):
    expansion: Schedule
    compression: Schedule
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the old model's teaching during expansion."""
    auxiliary: float = Field(ge=0)
    """Weight of the classifier that sees the new backbone alone."""
    old_branch: Literal["previous", "merged"]
    """What a residual head's old branch is: the previous model's features, or branches of expanded models, merged."""


class Mec(Pipeline):
    """A new backbone beside the frozen old one, then compression of both into one net by distillation."""

    Settings = MecSettings
    settings: MecSettings
    readout_names = ("compressed", "expanded")
    reads_logits = True

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        idle = super().idle_settings(large_base)
        return idle if self.has_branches else {**idle, "old_branch": RESIDUAL}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.learn_first(task, engine, LinearHead)
            return
        expanded = expand(self.net, self._expanded_head(task, engine), task.total)
        self._train(expanded, task, engine)
        # Before compression, so that the compressed net imitates the corrected one.
        self.remedy(expanded, task, engine)
        distil = partial(distillation, temperature=settings.temperature)
        self.parts["net"] = compress(self.net, expanded, task, engine, distil, settings.compression)
        self.parts["expanded"] = expanded

    def _train(self, expanded: ExpandedNet, task: Task, engine: Engine) -> None:
        settings = self.settings
        data = task.new.join(task.memory)
        adjust, weights = self.adjustment(task, data), self.class_weights(data, task)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """(1 - α) L_fusion + α L_branch + CE(auxiliary) + KD_T(Φ_{t-1} → old columns)."""
            return {
                **self.classification(output.logits, batch.labels, task.old, adjust, weights),
                "auxiliary": auxiliary_term(output, batch.labels, settings.auxiliary),
                "distillation": distillation_term(output, settings.temperature, settings.distillation),
            }

        train_expanded("expansion", expanded, task, engine, objective, settings.expansion, self.sampler)

    def _expanded_head(self, task: Task, engine: Engine) -> Head:
        """A head for both backbones. Only a residual head keeps something of the last expanded model: its branches."""
        last = self.parts.pop("expanded", None)
        merged = self.has_branches and self.settings.old_branch == "merged"
        if merged and isinstance(last, Net) and isinstance(last.head, ResidualHead):
            head: Head = copy.deepcopy(last.head)
        else:
            head = self.new_head(2 * self.net.backbone.channels)
            head.grow(task.old)
        head.grow(len(task.classes))
        if isinstance(head, ResidualHead) and not merged:
            head.branches.set_old_branch(**self._previous_branch(head, task, engine))
        return head

    def _previous_branch(self, head: ResidualHead, task: Task, engine: Engine) -> dict[str, Tensor]:
        """The branch that passes the features of the old backbone through, and none of the new one.

        Under the widened classifier its logits for old classes are the previous model's: ℓ'_t on old rows = ℓ̄_{t-1}.
        """
        moments = engine.features(Moments(self.net.backbone), task.new.join(task.memory)).mean(dim=0)
        mean, square = moments.chunk(2)
        variance = (square - mean.square()).clamp(min=0)
        # Both backbones have the same width: the second half is irrelevant and set to zero.
        branch = head.branches.identity(mean.repeat(2), variance.repeat(2))
        for tensor in branch.values():
            tensor[len(mean) :] = 0
        return branch

    def readouts(self) -> Mapping[str, Readout]:
        return {"compressed": Readout(self.net), "expanded": Readout(self.herding_net())}

    def herding_net(self) -> Net:
        return largest_net(self)


class Moments(nn.Module):
    """A net whose features are the mean of every channel over all positions, and then its mean square."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Output:
        features: Features = self.backbone(images)
        moments = torch.cat([features.pooled, pool(features.last.square(), self.backbone.channels)], dim=1)
        return Output(Logits(moments), features._replace(pooled=moments))


register_pipeline("mec", Mec, "mec", "MEC with a plain linear classifier")
register_pipeline("mecdrc", Mec, "mec", "MEC with the dynamic residual classifier on the expanded model", head="drc")
