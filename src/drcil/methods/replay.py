"""Fine-tuning, with a memory (replay), without one (finetune: the lower bound), with all images (joint: the upper)."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F

from ..heads import LinearHead
from ..stages import Batch, Losses, Output, Schedule, Stage, Term
from ..streams import Task
from .base import Engine, Method, Settings, method


class ReplaySettings(Settings):
    first: Schedule
    later: Schedule


def classification(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    """CE(z, y) over all classes seen so far."""
    return {"classification": Term(F.cross_entropy(output.logits.fused, batch.labels))}


@method("replay", paper="Rehearsal fine-tuning: Table 4, row 1 of Chen & Chang, Dynamic Residual Classifier", year=2023)
class Replay(Method):
    """Plain cross-entropy on new images and memory."""

    Settings = ReplaySettings
    settings: ReplaySettings

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            self.parts["net"] = self.new_net(LinearHead)
        self.net.head.grow(len(task.classes))
        name = "first" if task.number == 1 else "later"
        schedule = self.settings.first if task.number == 1 else self.settings.later
        engine.fit(Stage(name, self.net, task.new.join(task.memory), classification, schedule))


@method("finetune", paper="McCloskey & Cohen, Catastrophic Interference in Connectionist Networks", year=1989)
class Finetune(Replay):
    """The lower bound: new images only, no memory."""

    memory = "0"


@method("joint", paper="Caruana, Multitask Learning", year=1997)
class Joint(Replay):
    """The upper bound: every image of every class is kept."""

    memory = "all"
