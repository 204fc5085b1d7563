"""A classifier per task, each on an embedding of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .base import Head, Logits, kept_linear, require_classes


class PerTaskHead(Head):
    """A layer normalisation and a linear layer for every task; the i-th reads the i-th ``channels`` of its features.

    It takes features that widen with every task, (N, tasks x channels), so it is part of nets that give such and
    cannot be built by name.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.classifiers = nn.ModuleList()

    def grow(self, new_classes: int) -> None:
        require_classes(new_classes)
        fresh = new_classifier(self.channels, new_classes)
        known = next(self.parameters(), None)
        if known is not None:
            fresh.to(known.device, known.dtype)
        self.classifiers.append(fresh)
        self.tasks.append(new_classes)

    def keep(self, columns: Sequence[int]) -> None:
        start = 0
        for layers, size in zip(self.classifiers, self.tasks, strict=True):
            assert isinstance(layers, nn.Sequential)
            own = [column - start for column in columns if start <= column < start + size]
            norm, linear = layers
            assert isinstance(norm, nn.LayerNorm)
            assert isinstance(linear, nn.Linear)
            if not own:
                norm.reset_parameters()
            layers[1] = kept_linear(linear, own)
            start += size

    def forward(self, features: Tensor) -> Logits:
        own = torch.split(features, self.channels, dim=1)
        return Logits(torch.cat([layers(one) for layers, one in zip(self.classifiers, own, strict=True)], dim=1))

    def fold(self) -> PerTaskHead:
        """Itself: a normalisation of what is in an image is not an affine function."""
        return copy.deepcopy(self).eval().requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {}

    def newest(self) -> nn.Linear:
        """The layer with the rows of the newest task."""
        layer = self.get_submodule(f"classifiers.{len(self.tasks) - 1}.1")
        assert isinstance(layer, nn.Linear)
        return layer


def new_classifier(channels: int, classes: int) -> nn.Sequential:
    """A layer normalisation and a linear layer, both as torch initialises them."""
    return nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, classes))
