"""MEC, model expansion and compression: a new backbone beside the frozen old one, then one net that imitates both.

It follows FOSTER, without its class weights. A residual head sits on the expanded model, the only stage where the
paper puts it; its branches outlive the expanded model's backbones, so that they can be merged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from ..heads.base import Head, new_linear
from ..heads.linear import LinearHead
from ..nets.expanded import ExpandedNet
from ..nets.net import Net
from ..objectives import distillation
from ..stages import Batch, Losses, Output, Readout, Schedule, Stage, Term
from ..streams import Task
from .base import Engine, cross_entropy
from .pipeline import Pipeline, PipelineSettings, name_pipeline
from .remedies import classifier_of


class MecSettings(PipelineSettings):
    expansion: Schedule
    compression: Schedule
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the old model's teaching during expansion."""
    auxiliary: float = Field(ge=0)
    """Weight of the classifier that sees the new backbone alone."""


class Mec(Pipeline):
    """A new backbone beside the frozen old one, then compression of both into one net by distillation."""

    Settings = MecSettings
    settings: MecSettings
    later_stages = ("expansion", "compression")
    copies = "2, and a student while compressing"

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            engine.fit(Stage("first", self.begin(task, LinearHead), task.new, cross_entropy, self.settings.first))
            return
        expanded = self._expand(task, engine)
        self.remedy(expanded, task, engine)
        self.parts["net"] = self._compress(expanded, task, engine)
        self.parts["expanded"] = expanded

    def _expand(self, task: Task, engine: Engine) -> ExpandedNet:
        """Old backbone (frozen, in evaluation mode) and new one under one head, trained on new images and memory."""
        own, old, previous = self.settings, task.old, self.net
        expanded = self._expanded_net(task)
        frozen = expanded.backbone.get_submodule("members.0").requires_grad_(False)
        data = task.new.join(task.memory)
        adjust = self.adjustment(task, data)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """(1 - α) L_fusion + α L_branch + CE(auxiliary) + KD_T(Φ_{t-1} → old columns)."""
            terms = self.classification(output.logits, batch.labels, old, adjust)
            alone = F.cross_entropy(output.logits.extras["auxiliary"], batch.labels)
            taught = teachers["previous"].logits.fused
            kept = distillation(output.logits.fused[:, :old], taught, own.temperature)
            return {**terms, "auxiliary": Term(alone, own.auxiliary), "distillation": Term(kept, own.distillation)}

        engine.fit(
            Stage(
                "expansion",
                expanded,
                data,
                objective,
                own.expansion,
                teachers={"previous": previous},
                groups=self.groups(expanded),
                frozen=[frozen],
            )
        )
        return expanded

    def _expanded_net(self, task: Task) -> ExpandedNet:
        """Two copies of the old backbone under the grown head; its classifier starts with the old one's rows."""
        previous, width = self.net, self.net.backbone.channels
        head = self._expanded_head(2 * width, task)
        members = [copy.deepcopy(previous.backbone), copy.deepcopy(previous.backbone)]
        expanded = ExpandedNet(members, head, task.total)
        fresh, known = new_linear(2 * width, task.total), classifier_of(previous)
        with torch.no_grad():
            fresh.weight[: task.old, :width] = known.weight
            fresh.bias[: task.old] = known.bias
        classifier_of(expanded).load_state_dict(fresh.state_dict())
        return expanded

    def _expanded_head(self, width: int, task: Task) -> Head:
        """Branches as the last expanded model left them, merged; the first have learnt nothing yet."""
        if "expanded" in self.parts:
            last = self.parts["expanded"]
            assert isinstance(last, ExpandedNet)
            head = copy.deepcopy(last.head)
        else:
            head = self.new_head(width)
            head.grow(task.old)
        head.grow(len(task.classes))
        return head

    def _compress(self, expanded: ExpandedNet, task: Task, engine: Engine) -> Net:
        """A net of the old size that starts as the old one and learns to answer as the expanded model does."""
        own = self.settings
        student = copy.deepcopy(self.net)
        student.head.grow(len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """KD_T(expanded → student) over all classes."""
            taught = teachers["expanded"].logits.fused
            return {"compression": Term(distillation(output.logits.fused, taught, own.temperature))}

        data = task.new.join(task.memory)
        engine.fit(Stage("compression", student, data, objective, own.compression, teachers={"expanded": expanded}))
        return student

    def readouts(self) -> Mapping[str, Readout]:
        return {"compressed": Readout(self.net), "expanded": Readout(self.herding_net())}

    def herding_net(self) -> nn.Module:
        expanded = self.parts.get("expanded", self.net)
        assert isinstance(expanded, nn.Module)
        return expanded


name_pipeline("mec", Mec, "mec", "MEC with a plain linear classifier")
name_pipeline("mecdrc", Mec, "mec", "MEC with the dynamic residual classifier on the expanded model", head="drc")
