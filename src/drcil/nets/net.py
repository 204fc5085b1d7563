"""Net: a backbone and a head; outputs, readouts, frozen copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from ..heads.head import Head, Logits
from .backbone import Backbone, Features, build_backbone, build_described_head, fold_convolutions, require_width
from .parts import PARTS, Part


class Output(NamedTuple):
    """What a net makes of a batch."""

    logits: Logits
    features: Features


def fused_logits(output: Output) -> Tensor:
    """What the head answers: the usual scores."""
    return output.logits.fused


@dataclass(frozen=True)
class Readout:
    """A named way to turn a trained method into class scores: whose output is read, and how."""

    net: nn.Module
    scores: Callable[[Output], Tensor] = fused_logits
    """A function, or a part of the method where reading needs something learnt."""


@PARTS.register("net")
class Net(Part):
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
        """Add a task with this number of classes."""
        self.head.grow(new_classes)

    def forget(self, classes: Collection[int]) -> None:
        """Remove classes, by label; the logits of all others stay the same."""
        self.head.forget(classes)

    def under(self, head: Head) -> Net:
        """The same net under another head; tensors are shared."""
        return Net(self.backbone, head)

    def fold(self) -> FoldedNet:
        """A copy in evaluation mode that answers the same with fewer operations; this net is left untouched."""
        return FoldedNet(fold_convolutions(self.backbone), self.head.fold()).eval()

    def describe(self) -> dict[str, Any]:
        return {"backbone": self.backbone.describe(), "head": self.head.describe()}

    @classmethod
    def build(cls, backbone: Mapping[str, Any], head: Mapping[str, Any]) -> Net:
        features = build_backbone(**backbone)
        require_width(features, head)
        return Net(features, build_described_head(head))

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


@runtime_checkable
class _Foldable(Protocol):
    def fold(self) -> nn.Module: ...


def frozen_copy(net: nn.Module) -> nn.Module:
    """A copy in evaluation mode without gradients, folded where the net can be folded."""
    frozen = net.fold() if isinstance(net, _Foldable) else copy.deepcopy(net)
    return frozen.eval().requires_grad_(False)


def frozen_readouts(readouts: Mapping[str, Readout]) -> dict[str, Readout]:
    """Readouts of frozen copies; those that share a net go on to share its copy."""
    copies = {id(readout.net): frozen_copy(readout.net) for readout in readouts.values()}
    return {
        name: Readout(copies[id(original.net)], copy.deepcopy(original.scores)) for name, original in readouts.items()
    }
