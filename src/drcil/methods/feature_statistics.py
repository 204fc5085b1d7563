"""Base class of methods that compute the head from feature statistics.

They store statistics of features that are sums over classes: nothing is forgotten, and no exemplars are needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..data.image_set import ImageSet
from ..heads.head import Head
from ..heads.linear import LinearHead
from ..nets.backbone import WHOLE
from ..nets.net import Net
from ..objectives import cross_entropy
from ..stages import Engine, Schedule, Stage
from ..streams.stream import Task
from .method import Method, Settings


class OnePassSettings(Settings):
    first: Schedule
    """How a backbone that starts from random numbers is trained, on the first task and never again."""


class OnePassMethod(Method):
    """A head computed from features. The backbone is trained only where it is random, and on the first task alone."""

    settings: OnePassSettings
    memory = "0"
    accumulates = True
    reads_logits = False

    def warnings(self) -> list[str]:
        if not self.trains_backbone:
            return super().warnings()
        warning = "the backbone is random and is trained on the first task alone; pretrained weights do better"
        return [*super().warnings(), warning]

    @property
    def trains_backbone(self) -> bool:
        """Whether the backbone is trained on the first task."""
        return self.architecture.weights is None and self.architecture.frozen != WHOLE

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        return {} if self.trains_backbone else {"first": "a backbone that starts from random numbers and is not frozen"}

    @abstractmethod
    def new_head(self, channels: int) -> Head:
        """The head, without a class yet."""

    @abstractmethod
    def add_features(self, features: Tensor, labels: Tensor) -> None:
        """Learn from vectors (N, channels) of images: all of the newest classes, or more of known ones."""

    def learn(self, task: Task, engine: Engine) -> None:
        if task.number == 1:
            net = self.begin(task, self.new_head)
            # A backbone whose last part is frozen is frozen as a whole.
            if self.trains_backbone and net.backbone.frozen != WHOLE:
                self._train(net, task, engine)
        else:
            self.net.head.grow(len(task.classes))
        if not engine.rehearsing:
            self.add_features(engine.features(self.net, task.new), torch.from_numpy(task.new.labels))

    def refresh(self, images: ImageSet, exemplars: ImageSet, engine: Engine) -> None:
        """Add the images to the statistics, as if they had been there when their classes were learnt."""
        if not engine.rehearsing:
            self.add_features(engine.features(self.net, images), torch.from_numpy(images.labels))

    def _train(self, net: Net, task: Task, engine: Engine) -> None:
        """The backbone under a plain classifier, which is not needed afterwards."""
        trained = Net(net.backbone, LinearHead(net.backbone.channels))
        trained.head.grow(len(task.classes))
        engine.fit(Stage("first", trained, task.new, cross_entropy, self.settings.first))
