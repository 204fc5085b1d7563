"""What methods share that leave the backbone as it is and learn a task in one pass over its images.

They keep statistics of features, to which every class adds its own: nothing is forgotten, and no exemplar is needed.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..data.sources.imageset import ImageSet
from ..heads.base import Head
from ..heads.linear import LinearHead
from ..nets.freezing import WHOLE
from ..nets.net import Net
from ..schedules import Schedule
from ..stages import Engine, Stage
from ..streams.stream import Task
from .base import Method
from .objectives import cross_entropy
from .settings import Settings


class OnePassSettings(Settings):
    first: Schedule
    """How a backbone that starts from random numbers is trained, on the first task and never again."""


class OnePassMethod(Method):
    """A head computed from features. The backbone is trained only where it is random, and on the first task alone."""

    settings: OnePassSettings
    memory = "0"
    adds_up = True
    reads_logits = False

    def cautions(self) -> list[str]:
        own = self.architecture
        if own.weights is not None or own.frozen == WHOLE:
            return super().cautions()
        said = "the backbone is random and is trained on the first task alone; pretrained weights do better"
        return [*super().cautions(), said]

    @abstractmethod
    def new_head(self, channels: int) -> Head:
        """The head, without a class yet."""

    @abstractmethod
    def take_in(self, features: Tensor, labels: Tensor) -> None:
        """Learn from vectors (N, channels) of images: all of the newest classes, or more of known ones."""

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            net = self.begin(task, self.new_head)
            if self.architecture.weights is None and net.backbone.frozen != WHOLE:
                self._train(net, task, engine)
        else:
            self.net.head.grow(len(task.classes))
        if not engine.rehearsing:
            self.take_in(engine.features(self.net, task.new), torch.from_numpy(task.new.labels))

    def refresh(self, images: ImageSet, exemplars: ImageSet, engine: Engine) -> None:
        """Add the images to the statistics, as if they had been there when their classes were learnt."""
        if not engine.rehearsing:
            self.take_in(engine.features(self.net, images), torch.from_numpy(images.labels))

    def _train(self, net: Net, task: Task, engine: Engine) -> None:
        """The backbone under a plain classifier, which is not needed afterwards."""
        trained = Net(net.backbone, LinearHead(net.backbone.channels))
        trained.head.grow(len(task.classes))
        engine.fit(Stage("first", trained, task.new, cross_entropy, self.settings.first))
