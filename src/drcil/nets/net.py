"""The net: a backbone and a head, and its folded form for looking without learning."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from ..heads.base import Head, Logits
from .features import Backbone, Features
from .folding import fold_convolutions
from .output import Output


class Net(nn.Module):
    """Images to features to logits."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Output:
        return self.read(self.backbone(images))

    def read(self, features: Features) -> Output:
        """What the net makes of the features of images: of these the head reads either the last map or the vector."""
        return Output(self.head(features.last if self.head.reads == "last" else features.pooled), features)

    def grow(self, new_classes: int) -> None:
        """Open a task of so many classes."""
        self.head.grow(new_classes)

    def forget(self, classes: Collection[int]) -> None:
        """Let go of classes, by label; the logits of all others stay what they are."""
        self.head.forget(classes)

    def under(self, head: Head) -> Net:
        """The same net under another head; tensors are shared."""
        return Net(self.backbone, head)

    def fold(self) -> FoldedNet:
        """A copy in evaluation mode that answers the same with fewer operations; this net is left untouched."""
        return FoldedNet(fold_convolutions(self.backbone), self.head.fold()).eval()

    def describe(self) -> dict[str, Any]:
        """What ``nets.build.build_net`` needs to make a net of the same shape, as JSON."""
        return {"part": "net", "backbone": self.backbone.describe(), "head": self.head.describe()}

    def size(self) -> int:
        """How many learnt numbers it answers with: parameters and frozen branches, batch statistics not."""
        return sum(parameter.numel() for parameter in self.parameters()) + self.head.frozen_parameters()


class FoldedNet(nn.Module):
    """What ``Net.fold`` gives: the head has become a layer on pooled features that knows its fused logits only,
    unless it is a head that cannot be simplified.
    """

    def __init__(self, backbone: Backbone, classifier: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = classifier

    def forward(self, images: Tensor) -> Output:
        return self.read(self.backbone(images))

    def read(self, features: Features) -> Output:
        """What the net makes of the features of images: of these it reads the vector."""
        answer = self.classifier(features.pooled)
        return Output(answer if isinstance(answer, Logits) else Logits(fused=answer), features)
