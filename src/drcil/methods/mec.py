"""MEC, model expansion and compression: a new backbone beside the frozen old one, then one net that imitates both.

It follows FOSTER, without its class weights. A residual head sits on the expanded model, the only stage where the
paper puts it; its branches outlive the expanded model's backbones, so that they can be merged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

from pydantic import Field

from ..heads.base import Head
from ..heads.linear import LinearHead
from ..nets.expanded import ExpandedNet
from ..nets.net import Net
from ..nets.output import Output, Readout
from ..objectives import distillation
from ..schedules import Schedule
from ..stages import Batch, Engine, Losses
from ..streams.stream import Task
from .expansion import auxiliary_term, compress, expand, kept_term, largest, train_expanded
from .pipeline import Pipeline, PipelineSettings, register_pipeline


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
    readout_names = ("compressed", "expanded")
    copies = "2, and a student while compressing"

    def learn(self, task: Task, engine: Engine) -> None:
        own = self.settings
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        expanded = expand(self.net, self._expanded_head(task), task.total)
        self._train(expanded, task, engine)
        # Before compression, so that the net which is kept imitates the corrected one.
        self.remedy(expanded, task, engine)
        distil = partial(distillation, temperature=own.temperature)
        self.parts["net"] = compress(self.net, expanded, task, engine, distil, own.compression)
        self.parts["expanded"] = expanded

    def _train(self, expanded: ExpandedNet, task: Task, engine: Engine) -> None:
        own = self.settings
        adjust = self.adjustment(task, task.new.join(task.memory))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """(1 - α) L_fusion + α L_branch + CE(auxiliary) + KD_T(Φ_{t-1} → old columns)."""
            return {
                **self.classification(output.logits, batch.labels, task.old, adjust),
                "auxiliary": auxiliary_term(output, batch.labels, own.auxiliary),
                "distillation": kept_term(output, own.temperature, own.distillation),
            }

        train_expanded("expansion", expanded, task, engine, objective, own.expansion)

    def _expanded_head(self, task: Task) -> Head:
        """Branches as the last expanded model left them, merged; the first have learnt nothing yet."""
        if "expanded" in self.parts:
            head = copy.deepcopy(largest(self.parts).head)
            del self.parts["expanded"]
        else:
            head = self.new_head(2 * self.net.backbone.channels)
            head.grow(task.old)
        head.grow(len(task.classes))
        return head

    def readouts(self) -> Mapping[str, Readout]:
        return {"compressed": Readout(self.net), "expanded": Readout(self.herding_net())}

    def herding_net(self) -> Net:
        return largest(self.parts)


register_pipeline("mec", Mec, "mec", "MEC with a plain linear classifier")
register_pipeline("mecdrc", Mec, "mec", "MEC with the dynamic residual classifier on the expanded model", head="drc")
