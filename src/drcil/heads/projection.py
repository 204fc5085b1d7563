"""Random projection head (RanPAC): fixed random directions, a ReLU, and a fully connected layer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import check_int
from .head import HEADS, SIZES, Head, Logits, grown_linear, new_linear, pool


@HEADS.register("projected")
class ProjectedHead(Head):
    """z = W ReLU(R f) with a fixed random R: a linear classifier on more features than the backbone has.

    The entries of R (``projection``, width × channels) are standard normal, drawn when the head is made.
    """

    def __init__(self, channels: int, width: int = 2000) -> None:
        super().__init__(channels)
        self.width = check_int("the width of a projection", width, SIZES)
        self.projection = nn.Buffer(torch.empty(width, channels).normal_())
        self.classifier = new_linear(width, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.width, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(project_and_classify(pool(features, self.channels), self.projection, self.classifier))

    def fold(self) -> FoldedProjection:
        return FoldedProjection(self.projection.detach().clone(), copy.deepcopy(self.classifier).requires_grad_(False))

    def options(self) -> dict[str, Any]:
        return {"width": self.width}


class FoldedProjection(nn.Module):
    """Result of ``ProjectedHead.fold``."""

    def __init__(self, projection: Tensor, classifier: nn.Linear) -> None:
        super().__init__()
        self.projection = nn.Buffer(projection)
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        return project_and_classify(pool(features, self.projection.shape[1]), self.projection, self.classifier)


def projected(features: Tensor, projection: Tensor) -> Tensor:
    """h = ReLU(R f) of vectors (N, channels)."""
    return functional.relu(functional.linear(features.to(projection.dtype), projection))


def project_and_classify(features: Tensor, projection: Tensor, classifier: nn.Linear) -> Tensor:
    """W h of vectors (N, channels)."""
    # In full precision also under autocast: the rows of W may be large and of both signs.
    with torch.autocast(features.device.type, enabled=False):
        scores: Tensor = classifier(projected(features, projection))
    return scores
