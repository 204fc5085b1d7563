"""What a backbone is: images in, features out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..registry import Registry


class Features(NamedTuple):
    """What a backbone sees in a batch of images."""

    stages: tuple[Tensor, ...]
    """The map at the end of each stage, (N, C_s, H_s, W_s): what POD-spatial compares."""
    map: Tensor
    """The last map, (N, channels, H, W): what heads read."""
    pooled: Tensor
    """Its average over positions, (N, channels): what herding and nearest means read."""


class Backbone(nn.Module, ABC):
    """Images to features."""

    channels: int
    """Width of the last map."""

    @abstractmethod
    def forward(self, images: Tensor) -> Features: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and options, as JSON, from which the same architecture can be built again."""

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        """Pairs (convolution, batch norm right behind it) by module name: what folding joins."""
        return []


BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone", "drcil.nets")
"""Factories by name; each takes the number of image channels, and as keywords the variants it offers."""
