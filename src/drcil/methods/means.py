"""What methods share that can also classify by the nearest mean of exemplars."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..data.sources.imageset import ImageSet
from ..nets.output import Readout
from .base import Method
from .parts import NearestMean


class MethodWithMeans(Method):
    """A method that keeps the mean of every class's exemplars, as its net sees them after each task."""

    def needs_memory(self) -> bool:
        """A class without an exemplar has no mean to be near to."""
        return True

    def consolidate(self, exemplars: ImageSet, features: Callable[[ImageSet], Tensor]) -> None:
        labels = torch.from_numpy(exemplars.labels)
        self.parts["means"] = NearestMean.of(features(exemplars), labels, self.net.head.classes)

    def nearest_mean(self) -> Readout:
        """The net's features, read by the nearest mean."""
        means = self.parts["means"]
        assert isinstance(means, NearestMean)
        return Readout(self.net, means)
