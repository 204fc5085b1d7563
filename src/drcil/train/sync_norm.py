"""Batch normalisation over all processes, on CPUs too.

Torch's ``SyncBatchNorm`` needs a GPU, and converting a net to it changes the classes of its modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .. import distributed


class SyncNorms:
    """The batch normalisations of a net that several processes train."""

    def __init__(self, net: nn.Module, synchronised: bool) -> None:
        self._norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self._synchronised = synchronised and distributed.size() > 1
        self.is_shared = True
        """Whether processes see different images of the batch; otherwise each computes the statistics by itself."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block they take statistics over all processes, if they are synchronised."""
        if self._synchronised:
            for norm in self._norms:
                # On the instance, and not in its state: the module's class stays what it is.
                norm.forward = partial(self._forward, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for norm in self._norms:
                norm.__dict__.pop("forward", None)

    def _forward(self, norm: _BatchNorm, features: Tensor) -> Tensor:
        if not self.is_shared or not norm.training:
            return type(norm).forward(norm, features)
        track = partial(_track, norm)
        normalised: Tensor = _SyncNorm.apply(features, norm.weight, norm.bias, norm.eps, track)  # type: ignore[no-untyped-call]
        return normalised


def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Move the running statistics towards those of a batch, as torch does."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_((variance * (count / (count - 1))).to(norm.running_var.dtype), momentum)


class _SyncNorm(torch.autograd.Function):
    """(x - μ) / √(σ² + ε) · γ + β with the mean μ and variance σ² over the positions of all processes' images.

    Each process sends the mean and the variance of its images; combined they are exact for any distance of means.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, track: Any
    ) -> Tensor:
        axes = [0, *range(2, features.ndim)]
        full = _widen_half(features)
        count = full.numel() // full.shape[1]
        variance, mean = torch.var_mean(full, axes, correction=0)
        gathered = distributed.all_gather(torch.cat([mean, variance, mean.new_full((1,), count)]))
        means, variances, counts = gathered[:, : len(mean)], gathered[:, len(mean) : -1], gathered[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
        track(mean, variance, total)
        scale = torch.rsqrt(variance + epsilon)
        ctx.save_for_backward(features, weight, mean, scale, total)
        ctx.bias_type = None if bias is None else bias.dtype
        # Evaluation's formula with these statistics, in one kernel.
        return functional.batch_norm(features, mean, variance, weight, bias, training=False, eps=epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, mean, scale, total = ctx.saved_tensors
        axes = [0, *range(2, features.ndim)]
        shape = [1, -1, *[1] * (features.ndim - 2)]
        slope = _widen_half(gradient)
        normalised = (_widen_half(features) - mean.view(shape)) * scale.view(shape)
        sums = torch.stack([slope.sum(axes), (slope * normalised).sum(axes)])
        for_bias, for_weight = sums.clone()
        # Over all images: the gradients that pass through the shared mean and variance.
        offset, mean_product = distributed.all_reduce(sums) / total
        inner = slope - offset.view(shape) - normalised * mean_product.view(shape)
        factor = scale if weight is None else scale * weight.to(scale.dtype)
        # Affine parameters get this process's part: gradients are added up over processes later.
        return (
            (inner * factor.view(shape)).to(features.dtype),
            None if weight is None else for_weight.to(weight.dtype),
            None if ctx.bias_type is None else for_bias.to(ctx.bias_type),
            None,
            None,
        )


def _widen_half(tensor: Tensor) -> Tensor:
    """Half precision as single precision, for sums over a batch."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
