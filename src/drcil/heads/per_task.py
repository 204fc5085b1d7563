"""One classifier per task, each on its own embedding (DyTox)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .head import Head, Logits, require_classes, select_rows


class PerTaskHead(Head):
    """A layer normalisation and a linear layer for every task; the i-th reads the i-th ``channels`` of its features.

    Its features (N, tasks x channels) get wider with every task, so only nets with such features use it, and it is not
    registered by name.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.classifiers = nn.ModuleList()

    def grow(self, new_classes: int) -> None:
        require_classes(new_classes)
        fresh = new_classifier(self.channels, new_classes)
        parameter = next(self.parameters(), None)
        if parameter is not None:
            fresh.to(parameter.device, parameter.dtype)
        self.classifiers.append(fresh)
        self.tasks.append(new_classes)

    def keep(self, columns: Sequence[int]) -> None:
        start = 0
        for layers, size in zip(self.classifiers, self.tasks, strict=True):
            assert isinstance(layers, nn.Sequential)
            rows = [column - start for column in columns if start <= column < start + size]
            norm, linear = layers
            assert isinstance(norm, nn.LayerNorm)
            assert isinstance(linear, nn.Linear)
            if not rows:
                norm.reset_parameters()
            layers[1] = select_rows(linear, rows)
            start += size

    def forward(self, features: Tensor) -> Logits:
        embeddings = torch.split(features, self.channels, dim=1)
        logits = [layers(embedding) for layers, embedding in zip(self.classifiers, embeddings, strict=True)]
        return Logits(torch.cat(logits, dim=1))

    def fold(self) -> PerTaskHead:
        """A frozen copy: layer normalisation is not affine."""
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
