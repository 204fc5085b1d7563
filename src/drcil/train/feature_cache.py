"""Features of frozen backbones, computed once per image.

A stage that trains the head alone, on the same views of its images, would compute the same features at every step. Here
each image goes through the backbone once in a task. Only what the head reads is stored: the last map or tokens, or the
pooled vector.

The content of the cache depends only on the stages of the task. A task that is repeated after a kill needs the same
features in the same order, for restored stages too, so that they are the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.image_set import ImageSet
from ..heads.head import pool
from ..inference import FeatureBank, Inference
from ..nets.backbone import WHOLE, Features, frozen_backbones, frozen_modules
from ..nets.expanded import members_of
from ..nets.net import FoldedNet, Net, Output
from ..stages import Stage
from .optimizers import groups_of
from .snapshots import Digests


@dataclass(frozen=True)
class _Bank:
    """Features of one backbone by image, and the bytes of one image."""

    features: FeatureBank
    image_bytes: int


class FeatureCache:
    """The features that the stages of one task share, by backbone and by what the head reads of it."""

    def __init__(self, inference: Inference, limit: int) -> None:
        """``limit``: bytes for the features of a task; a stage that would exceed it computes them at every step."""
        self._inference, self._limit = inference, limit
        self._banks: dict[tuple[str, str], _Bank] = {}

    def clear(self) -> None:
        self._banks.clear()

    def of(self, stage: Stage, digests: Digests) -> Tensor | None:
        """What the net's head reads of each image of the stage, on the device; None: steps compute features."""
        net = stage.net
        if not isinstance(net, Net) or stage.reads_maps or not has_constant_features(stage):
            return None
        digest = digests.of_module(net.backbone)
        for teacher in stage.teachers.values():
            if not _reads_backbone_only(teacher) or digests.of_module(_net(teacher).backbone) != digest:
                return None
        return self._tensor(net, digest, net.head.reads, stage.data)

    def pooled(self, net: nn.Module, images: ImageSet) -> Tensor | None:
        """Pooled features of images, on the device; None where the backbone is not frozen, or they are too large."""
        if not _reads_backbone_only(net) or any(member.frozen != WHOLE for member in members_of(_net(net))):
            return None
        digest = Digests().of_module(_net(net).backbone)
        # Maps that stages have computed give them too.
        reads = "last" if (digest, "last") in self._banks else "pooled"
        features = self._tensor(_net(net), digest, reads, images)
        return None if features is None else pool(features, _net(net).backbone.channels)

    def _tensor(self, net: Net, digest: str, reads: str, images: ImageSet) -> Tensor | None:
        """Features of the images, on the device; None where they are too large."""
        bank = self._banks.get((digest, reads)) or self._new_bank(net, reads, images)
        others = sum(
            other.features.image_count * other.image_bytes for other in self._banks.values() if other is not bank
        )
        if others + (bank.features.image_count + len(images)) * bank.image_bytes > self._limit:
            return None
        self._banks[digest, reads] = bank
        return bank.features(images).to(self._inference.device)

    def _new_bank(self, net: Net, reads: str, images: ImageSet) -> _Bank:
        # A copy, because the net itself may learn in a later stage.
        inference, frozen = self._inference, self._inference.frozen(net)
        blank = torch.zeros(1, images.shape.channels, images.shape.size, images.shape.size, device=inference.device)
        with torch.inference_mode():
            features = getattr(frozen(blank).features, reads)

        def compute(images: ImageSet) -> Tensor:
            return inference.outputs(frozen, images, lambda output: (getattr(output.features, reads),))[0]

        return _Bank(FeatureBank(compute), features.numel() * features.element_size())


class NetOnCachedFeatures(nn.Module):
    """A net that takes positions of images in a stage's data, and reads their cached features."""

    def __init__(self, net: nn.Module, features: Tensor) -> None:
        super().__init__()
        assert isinstance(net, Net | FoldedNet)
        self.net = net
        # Not a buffer: it is no part of the net, and shared.
        self._features = (features,)

    def forward(self, positions: Tensor) -> Output:
        features = self._features[0][positions]
        return self.net.read(Features((), features, pool(features, self.net.backbone.channels)))


def has_constant_features(stage: Stage) -> bool:
    """Whether the backbone's features of an image are the same in every step of the stage."""
    if not _reads_backbone_only(stage.net):
        return False
    in_eval_mode = {id(module) for part in modules_in_eval_mode(stage) for module in part.modules()}
    trained = {id(parameter) for group in groups_of(stage) for parameter in group.parameters}
    return all(
        all(id(module) in in_eval_mode for module in backbone.modules())
        and not any(id(parameter) in trained for parameter in backbone.parameters())
        for backbone in members_of(_net(stage.net))
    )


def modules_in_eval_mode(stage: Stage) -> list[nn.Module]:
    """Modules that stay in evaluation mode: those of the stage, and frozen parts of backbones."""
    return [*stage.frozen, *(part for backbone in frozen_backbones(stage.net) for part in frozen_modules(backbone))]


def _reads_backbone_only(net: nn.Module) -> bool:
    """Whether a net sees images through its backbone only."""
    return isinstance(net, Net) and type(net).forward is Net.forward


def _net(net: nn.Module) -> Net:
    assert isinstance(net, Net)
    return net
