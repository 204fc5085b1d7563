"""The random projection head: fixed random directions, a ReLU, and one fully connected layer on what they say."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..arguments import whole
from ..limits import CHANNELS
from .base import HEADS, Head, Logits, grown_linear, new_linear, pool


@HEADS.register("projected")
class ProjectedHead(Head):
    """z = W ReLU(R f) with a fixed random R: a linear classifier on more features than the backbone has.

    The entries of R (``projection``, width × channels) are standard normal, drawn when the head is made.
    """

    def __init__(self, channels: int, width: int = 2000) -> None:
        super().__init__(channels)
        self.width = whole("the width of a projection", width, CHANNELS)
        self.projection = nn.Buffer(torch.empty(width, channels).normal_())
        self.classifier = new_linear(width, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.width, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(answered(pool(features, self.channels), self.projection, self.classifier))

    def fold(self) -> FoldedProjection:
        return FoldedProjection(self.projection.detach().clone(), copy.deepcopy(self.classifier).requires_grad_(False))

    def options(self) -> dict[str, Any]:
        return {"width": self.width}


class FoldedProjection(nn.Module):
    """What ``ProjectedHead.fold`` gives."""

    def __init__(self, projection: Tensor, classifier: nn.Linear) -> None:
        super().__init__()
        self.projection = nn.Buffer(projection)
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        return answered(pool(features, self.projection.shape[1]), self.projection, self.classifier)


def projected(features: Tensor, projection: Tensor) -> Tensor:
    """h = ReLU(R f) of vectors (N, channels)."""
    return functional.relu(functional.linear(features.to(projection.dtype), projection))


def answered(features: Tensor, projection: Tensor, classifier: nn.Linear) -> Tensor:
    """W h of vectors (N, channels)."""
    # In full precision also where products are rounded: the rows of W may be large and of both signs.
    with torch.autocast(features.device.type, enabled=False):
        scores: Tensor = classifier(projected(features, projection))
    return scores
