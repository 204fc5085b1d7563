"""Features that are computed once and kept: what a frozen backbone makes of images that are not augmented.

A stage that trains the head alone, on the same views of its images, would compute the same features at every step. Here
each image goes through the backbone once in a task. Only what the head reads is kept: the last map or tokens, or the
vector.

What is kept depends on the stages of the task alone. A task that is learnt again after a kill asks for the same
features in the same order, for restored stages too, so that they are the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.sources.imageset import ImageSet
from ..heads.base import pool
from ..inference.bank import FeatureBank
from ..inference.inference import Inference
from ..nets.expanded import members_of
from ..nets.features import Features
from ..nets.freezing import WHOLE, frozen_backbones, frozen_modules
from ..nets.net import FoldedNet, Net
from ..nets.output import Output
from ..stages import Stage
from .optimizers import groups_of
from .snapshot import digest_of_module


@dataclass(frozen=True)
class _Bank:
    """Features of one backbone by image, and how many bytes an image takes."""

    features: FeatureBank
    each: int


class KeptFeatures:
    """The features that the stages of one task share, by backbone and by what the head reads of it."""

    def __init__(self, inference: Inference, limit: int) -> None:
        """``limit``: bytes for the features of a task; a stage that would exceed it computes them at every step."""
        self._inference, self._limit = inference, limit
        self._banks: dict[tuple[str, str], _Bank] = {}

    def clear(self) -> None:
        self._banks.clear()

    def of(self, stage: Stage) -> Tensor | None:
        """What the net's head reads of each image of the stage, on the device; None: its steps compute their own."""
        net = stage.net
        if not isinstance(net, Net) or stage.reads_maps or not has_constant_features(stage):
            return None
        digest = digest_of_module(net.backbone)
        for teacher in stage.teachers.values():
            if not reads_features(teacher) or digest_of_module(_net(teacher).backbone) != digest:
                return None
        return self._tensor(net, digest, net.head.reads, stage.data)

    def pooled(self, net: nn.Module, images: ImageSet) -> Tensor | None:
        """The vectors of images, on the device; None where the net's backbone is not frozen, or they are too many."""
        if not reads_features(net) or any(member.frozen != WHOLE for member in members_of(_net(net))):
            return None
        digest = digest_of_module(_net(net).backbone)
        # Maps that stages have asked for say it too.
        reads = "last" if (digest, "last") in self._banks else "pooled"
        seen = self._tensor(_net(net), digest, reads, images)
        return None if seen is None else pool(seen, _net(net).backbone.channels)

    def _tensor(self, net: Net, digest: str, reads: str, images: ImageSet) -> Tensor | None:
        """Features of the images, on the device; None where they are too many."""
        bank = self._banks.get((digest, reads)) or self._bank(net, reads, images)
        others = sum(other.features.known * other.each for other in self._banks.values() if other is not bank)
        if others + (bank.features.known + len(images)) * bank.each > self._limit:
            return None
        self._banks[digest, reads] = bank
        return bank.features(images).to(self._inference.device)

    def _bank(self, net: Net, reads: str, images: ImageSet) -> _Bank:
        # A copy, because the net itself may learn in a later stage.
        inference, frozen = self._inference, self._inference.frozen(net)
        blank = torch.zeros(1, images.source.channels, images.source.size, images.source.size, device=inference.device)
        with torch.inference_mode():
            each = getattr(frozen(blank).features, reads)

        def features(images: ImageSet) -> Tensor:
            return inference.outputs(frozen, images, lambda output: (getattr(output.features, reads),))[0]

        return _Bank(FeatureBank(features), each.numel() * each.element_size())


class OnFeatures(nn.Module):
    """A net that is asked by where images stand in a stage's data, and reads the features that are kept of these."""

    def __init__(self, net: nn.Module, kept: Tensor) -> None:
        super().__init__()
        assert isinstance(net, Net | FoldedNet)
        self.net = net
        # Not a buffer: it is no part of the net, and shared.
        self._kept = (kept,)

    def forward(self, where: Tensor) -> Output:
        seen = self._kept[0][where]
        return self.net.read(Features((), seen, pool(seen, self.net.backbone.channels)))


def has_constant_features(stage: Stage) -> bool:
    """Whether no step of the stage changes what the backbone makes of an image."""
    if not reads_features(stage.net):
        return False
    still = {id(module) for part in still_modules(stage) for module in part.modules()}
    trained = {id(parameter) for group in groups_of(stage) for parameter in group.parameters}
    return all(
        all(id(module) in still for module in backbone.modules())
        and not any(id(parameter) in trained for parameter in backbone.parameters())
        for backbone in members_of(_net(stage.net))
    )


def still_modules(stage: Stage) -> list[nn.Module]:
    """What stays in evaluation mode: as the stage says, and what is frozen."""
    return [*stage.frozen, *(part for backbone in frozen_backbones(stage.net) for part in frozen_modules(backbone))]


def reads_features(net: nn.Module) -> bool:
    """Whether a net can be asked by features: one that sees images through its backbone and in no other way."""
    return isinstance(net, Net) and type(net).forward is Net.forward


def _net(net: nn.Module) -> Net:
    assert isinstance(net, Net)
    return net
