"""iCaRL: distillation from the previous model, and classification by the nearest mean of exemplars."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from pydantic import Field

from ..heads import LinearHead
from ..nets.net import Readout
from ..objectives import ce_and_distillation
from ..stages import Engine, Schedule, Stage
from ..streams.stream import Task
from .catalog import method
from .method import Settings
from .nearest_mean import MethodWithMeans


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
    readout_names = ("nme", "classifier")
    reads_logits = False

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        previous = copy.deepcopy(self.net)
        self.net.head.grow(len(task.classes))
        data, objective = (
            task.new.join(task.memory),
            ce_and_distillation(settings.temperature, (1.0, settings.distillation)),
        )
        engine.fit(Stage("later", self.net, data, objective, settings.later, teachers={"previous": previous}))

    def readouts(self) -> Mapping[str, Readout]:
        return {"nme": self.nearest_mean(), "classifier": Readout(self.net)}
