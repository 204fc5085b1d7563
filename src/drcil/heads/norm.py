"""The normalised classifier: what a single batch-normalised branch is, without a past."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import HEADS, Head, Logits, grown_linear, linear_of, new_linear
from .branches import NormBranches


@HEADS.register("norm")
class NormHead(Head):
    """One batch normalisation with scale and shift before a fully connected layer: z = H(γ ẑ + β).

    The control for the residual heads: it has their normalisation, and neither a second branch nor a past.
    """

    reads = "last"

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.branches = NormBranches(channels)
        # A layer without rows rather than none: it remembers the device and dtype the head was moved to.
        self.classifier = new_linear(channels, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        normalised, _ = self.branches(features)
        return Logits(self.classifier(normalised))

    def fold(self) -> nn.Linear:
        like = self.classifier.weight
        weight, bias = (tensor.detach().to("cpu", torch.float64) for tensor in (like, self.classifier.bias))
        matrix, offset = self.branches.affine(self.branches.new())
        return linear_of(weight @ matrix, weight @ offset + bias).to(like.device, like.dtype).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {}
