"""Fine-tuning, with a memory (replay), without one (finetune: the lower bound), with all images (joint: the upper)."""

from __future__ import annotations

from ..heads import LinearHead
from ..objectives import cross_entropy
from ..stages import Engine, Schedule, Stage
from ..streams.stream import Task
from .catalog import method
from .method import Method, Settings


class ReplaySettings(Settings):
    first: Schedule
    later: Schedule


@method("replay", paper="Rehearsal fine-tuning: Table 4, row 1 of Chen & Chang, Dynamic Residual Classifier", year=2023)
class Replay(Method):
    """Plain cross-entropy on new images and memory."""

    Settings = ReplaySettings
    settings: ReplaySettings

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        self.net.head.grow(len(task.classes))
        engine.fit(Stage("later", self.net, task.new.join(task.memory), cross_entropy, self.settings.later))


@method("finetune", paper="McCloskey & Cohen, Catastrophic Interference in Connectionist Networks", year=1989)
class Finetune(Replay):
    """The lower bound: new images only, no memory."""

    memory = "0"


@method("joint", paper="Caruana, Multitask Learning", year=1997, recipe="replay")
class Joint(Replay):
    """The upper bound: every image of every class is kept."""

    memory = "all"
