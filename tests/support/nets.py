"""Nets as after training."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from drcil.seeding import generator

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def with_statistics(module: AnyModule, *key: int | str) -> AnyModule:
    """The module, its batch normalisations with random statistics and affine maps, drawn by this key."""
    source = generator("test", *key)

    def draw(like: Tensor, low: float, high: float) -> Tensor:
        return torch.empty_like(like, device="cpu").uniform_(low, high, generator=source)

    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                assert layer.running_var is not None
                layer.running_mean.copy_(draw(layer.running_mean, -0.5, 0.5))
                layer.running_var.copy_(draw(layer.running_var, 0.5, 2))
                if layer.affine:
                    layer.weight.copy_(draw(layer.weight, 0.5, 1.5))
                    layer.bias.copy_(draw(layer.bias, -0.5, 0.5))
    return module
