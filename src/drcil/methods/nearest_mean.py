"""Nearest-mean classification, and the base class of methods with a cosine head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ..data.image_set import ImageSet
from ..heads.cosine import CosineHead
from ..nets.net import Output, Readout
from ..nets.parts import PARTS, Part
from ..stages import ParamGroup
from .method import Method

_ROWS = 1024
"""Features that are added at a time."""


@PARTS.register("nearest-mean")
class NearestMean(Part):
    """Nearest mean of exemplars: the score of a class is minus the squared distance to its mean.

    Features and means are normalised to unit length, as in herding and iCaRL.
    """

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = nn.Buffer(means)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> NearestMean:
        """The normalised means of the normalised features of each class."""
        sums = class_sums(features, labels, torch.zeros(classes, features.shape[1]), normalised)
        means = sums / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]
        return cls(means / means.norm(dim=1, keepdim=True).clamp(min=1e-8))

    def forward(self, output: Output) -> Tensor:
        features = normalised(output.features.pooled)
        return -torch.cdist(features, self.means.to(features.device)).square()

    def forget(self, classes: Collection[int]) -> None:
        self.means = nn.Buffer(self.means[[label for label in range(len(self.means)) if label not in classes]])

    def describe(self) -> dict[str, Any]:
        return {"shape": list(self.means.shape)}

    @classmethod
    def build(cls, shape: list[int]) -> NearestMean:
        return cls(torch.zeros(shape))


def normalised(features: Tensor) -> Tensor:
    """Each row divided by its norm (plus 1e-8)."""
    norms: Tensor = features.norm(dim=1, keepdim=True)
    return features / (norms + 1e-8)


def class_sums(features: Tensor, labels: Tensor, sums: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Adds each transformed row to the row of its label in ``sums``, some rows at a time to save memory."""
    for rows, row_labels in zip(torch.split(features, _ROWS), torch.split(labels, _ROWS), strict=True):
        sums.index_add_(0, row_labels, transform(rows))
    return sums


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
        return Readout(self.net, self.part("means", NearestMean))


class CosineMethod(MethodWithMeans):
    """A method whose head compares directions, those of old classes frozen while new ones are learnt."""

    backbone_options = MappingProxyType({"shortcut": "projected", "last_relu": False})
    head = "cosine"
    readout_names = ("classifier", "nme")
    reads_logits = True

    @property
    def cosine_head(self) -> CosineHead:
        """The net's head."""
        head = self.net.head
        assert isinstance(head, CosineHead)
        return head

    def all_but_old_rows(self) -> list[ParamGroup]:
        """Every parameter except the rows of old classes, which neither gradient nor decay shall move."""
        old = self.cosine_head.old_rows
        return [ParamGroup([parameter for parameter in self.net.parameters() if parameter is not old])]

    def readouts(self) -> Mapping[str, Readout]:
        return {"classifier": Readout(self.net), "nme": self.nearest_mean()}
