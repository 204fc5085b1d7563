"""Folding: in evaluation mode a batch normalisation is a scale and a shift, which the convolution before it can do."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from .features import Backbone

AnyBackbone = TypeVar("AnyBackbone", bound=Backbone)


@torch.no_grad()
def fold_convolutions(backbone: AnyBackbone) -> AnyBackbone:
    """A copy in evaluation mode, without batch normalisations, that gives the same features; not to be trained."""
    folded = copy.deepcopy(backbone).eval()
    for conv_name, norm_name in folded.normalised_convolutions():
        conv, norm = folded.get_submodule(conv_name), folded.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)
        _fold_into(conv, norm)
        parent, _, leaf = norm_name.rpartition(".")
        setattr(folded.get_submodule(parent), leaf, nn.Identity())
    return folded.requires_grad_(False)


def _fold_into(conv: nn.Conv2d, norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> None:
    """conv := γ (conv − μ) / sqrt(σ² + ε) + β, computed in double precision so that only one rounding is felt."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = _double(norm.weight) / torch.sqrt(_double(variance) + norm.eps)
    bias = torch.zeros_like(scale) if conv.bias is None else _double(conv.bias)
    shift = _double(norm.bias) + scale * (bias - _double(mean))
    like = conv.weight
    conv.weight = nn.Parameter((_double(like) * scale[:, None, None, None]).to(like.device, like.dtype))
    conv.bias = nn.Parameter(shift.to(like.device, like.dtype))


def _double(tensor: Tensor) -> Tensor:
    # On the CPU, because not every device has double precision.
    return tensor.detach().to("cpu", torch.float64)
