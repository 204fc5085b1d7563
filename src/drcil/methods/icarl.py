"""iCaRL: distillation from the previous model, and classification by the nearest mean of exemplars."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch.nn.functional as F
from pydantic import Field

from ..heads import LinearHead
from ..objectives import distillation
from ..stages import Batch, Losses, Output, Readout, Schedule, Stage, Term
from ..streams import Task
from .base import Engine, Settings, cross_entropy, method
from .means import MethodWithMeans


class IcarlSettings(Settings):
    first: Schedule
    later: Schedule
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the distillation term."""


@method("icarl", paper="Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR", year=2017)
class Icarl(MethodWithMeans):
    """Cross-entropy plus distillation from the previous model; nearest mean of exemplars."""

    Settings = IcarlSettings
    settings: IcarlSettings
    copies = "2"

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            engine.fit(Stage("first", self.begin(task, LinearHead), task.new, cross_entropy, self.settings.first))
            return
        previous = copy.deepcopy(self.net)
        self.net.head.grow(len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(z, y) + w · KD_T(z_old, z[:K])."""
            logits = output.logits.fused
            kept = distillation(logits[:, : task.old], teachers["previous"].logits.fused, self.settings.temperature)
            return {
                "classification": Term(F.cross_entropy(logits, batch.labels)),
                "distillation": Term(kept, self.settings.distillation),
            }

        data = task.new.join(task.memory)
        engine.fit(Stage("later", self.net, data, objective, self.settings.later, teachers={"previous": previous}))

    def readouts(self) -> Mapping[str, Readout]:
        return {"nme": self.nearest_mean(), "classifier": Readout(self.net)}
