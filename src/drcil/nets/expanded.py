"""Nets with several backbones: earlier ones are frozen, the newest is trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError
from ..heads.head import Head, new_linear
from .backbone import Backbone, Features, build_backbone, build_described_head, require_width
from .net import Net, Output
from .parts import PARTS


class SideBySide(Backbone):
    """Several backbones on the same images, their maps or tokens stacked along the channels, oldest first."""

    def __init__(self, members: Sequence[Backbone]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.channels = sum(member.channels for member in members)
        self.stage_maps = members[-1].stage_maps

    def forward(self, images: Tensor) -> Features:
        # A frozen member has no parameter that requires a gradient, so no graph is stored.
        features: list[Features] = [member(images) for member in self.members]
        dimensions = {member.last.ndim for member in features}
        if len(dimensions) > 1:
            raise UserError("backbones side by side must all give maps or all give tokens, but these give both")
        last = torch.cat([member.last for member in features], dim=1 if dimensions == {4} else 2)
        pooled = torch.cat([member.pooled for member in features], dim=1)
        return Features(features[-1].stages, last, pooled)

    def describe(self) -> dict[str, Any]:
        return {"members": [member.describe() for member in self.backbones()]}

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        return [
            (f"members.{index}.{conv}", f"members.{index}.{norm}")
            for index, member in enumerate(self.backbones())
            for conv, norm in member.normalised_convolutions()
        ]

    def backbones(self) -> list[Backbone]:
        """The members, oldest first."""
        return [member for member in self.members if isinstance(member, Backbone)]


@PARTS.register("expanded")
class ExpandedNet(Net):
    """Backbones side by side under one head, and an auxiliary classifier that sees only the newest backbone.

    The auxiliary logits (``extras["auxiliary"]``) make the new backbone learn new features. With ``previous``,
    the classifier of a net that had all members but the newest, that net's logits are given too
    (``extras["previous"]``), for its features are at hand. Both are for training: folding drops them, and the previous
    classifier is not saved.
    """

    previous_weight: Tensor | None
    previous_bias: Tensor | None

    def __init__(
        self, members: Sequence[Backbone], head: Head, auxiliary_classes: int, previous: nn.Linear | None = None
    ) -> None:
        super().__init__(SideBySide(members), head)
        self.newest_channels = members[-1].channels
        self.auxiliary = new_linear(self.newest_channels, auxiliary_classes)
        rows = (None, None) if previous is None else (previous.weight.detach().clone(), previous.bias.detach().clone())
        self.register_buffer("previous_weight", rows[0], persistent=False)
        self.register_buffer("previous_bias", rows[1], persistent=False)

    def read(self, features: Features) -> Output:
        output, pooled = super().read(features), features.pooled
        extras = {"auxiliary": self.auxiliary(pooled[:, -self.newest_channels :])}
        if self.previous_weight is not None:
            extras["previous"] = functional.linear(
                pooled[:, : -self.newest_channels], self.previous_weight, self.previous_bias
            )
        return Output(output.logits._replace(extras=extras), output.features)

    @torch.no_grad()
    def forget(self, classes: Collection[int]) -> None:
        super().forget(classes)
        # What was for training is of no use any more, but knows the classes.
        self.auxiliary.weight.zero_()
        self.auxiliary.bias.zero_()
        self.previous_weight = self.previous_bias = None

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "auxiliary": self.auxiliary.out_features}

    @classmethod
    def build(cls, backbone: Mapping[str, Any], head: Mapping[str, Any], auxiliary: int = 0) -> ExpandedNet:
        members = [build_backbone(**member) for member in backbone["members"]]
        require_width(SideBySide(members), head)
        return ExpandedNet(members, build_described_head(head), auxiliary)

    def size(self) -> int:
        return super().size() - sum(parameter.numel() for parameter in self.auxiliary.parameters())


def members_of(net: Net) -> list[Backbone]:
    """The backbones of a net, oldest first: several if it has grown, else its only one."""
    return net.backbone.backbones() if isinstance(net.backbone, SideBySide) else [net.backbone]
