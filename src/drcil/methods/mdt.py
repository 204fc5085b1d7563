"""MDT, model direct transfer: one stage, in which the previous model teaches the next one. It follows iCaRL."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from pydantic import Field

from ..nets.net import Output
from ..objectives import distillation
from ..stages import Batch, Engine, Losses, Schedule, Stage, Term
from ..streams.stream import Task
from .pipeline import Pipeline, PipelineSettings, register_pipeline


class MdtSettings(PipelineSettings):
    transfer: Schedule
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the distillation term."""


class Mdt(Pipeline):
    """One stage on new images and memory, with distillation from the previous model."""

    Settings = MdtSettings
    settings: MdtSettings

    def learn(self, task: Task, engine: Engine) -> None:
        settings, old = self.settings, task.old
        if task.number == 1:
            self.learn_first(task, engine)
            return
        previous = copy.deepcopy(self.net)
        self.net.head.grow(len(task.classes))
        data = task.new.join(task.memory)
        adjust, weights = self.adjustment(task, data), self.class_weights(data, task)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """(1 - α) L_fusion + α L_branch + w · KD_T(Φ_{t-1} → old columns)."""
            terms = self.classification(output.logits, batch.labels, old, adjust, weights)
            teacher_logits = teachers["previous"].logits.fused
            distilled = distillation(output.logits.fused[:, :old], teacher_logits, settings.temperature)
            return {**terms, "distillation": Term(distilled, settings.distillation)}

        teachers = {"previous": previous}
        engine.fit(
            Stage("transfer", self.net, data, objective, settings.transfer, teachers=teachers, sampler=self.sampler)
        )
        self.remedy(self.net, task, engine)


register_pipeline("mdt", Mdt, "mdt", "MDT with a plain linear classifier")
register_pipeline("mdtdrc", Mdt, "mdt", "MDT with the dynamic residual classifier", head="drc")
