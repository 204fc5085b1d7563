"""The plain classifier: one fully connected layer on pooled features."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from .base import HEADS, Head, Logits, grown_linear, new_linear, pool


@HEADS.register("linear")
class LinearHead(Head):
    """One fully connected layer on pooled features."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        # A layer without rows rather than none: it remembers the device and dtype the head was moved to.
        self.classifier = new_linear(channels, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(self.classifier(pool(features, self.channels)))

    def fold(self) -> nn.Linear:
        return copy.deepcopy(self.classifier).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {}
