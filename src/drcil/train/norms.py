"""Batch normalisation over a batch that is spread over processes.

In a net that is being trained every batch normalisation takes its statistics from the images of all processes, on any
device; or each process takes its own, and only the running statistics are kept alike.
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

from ..team import Team


class SpreadNorms:
    """The batch normalisations of a net in a team of processes."""

    def __init__(self, net: nn.Module, team: Team, synchronised: bool) -> None:
        self._norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self._team, self._synchronised = team, synchronised and not team.alone
        self.whole = False
        """Whether every process sees the whole batch at the moment, so that there is nothing to exchange."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block they normalise together, if that is asked for."""
        if self._synchronised:
            for norm in self._norms:
                # Of this module alone, and not in its state: it stays the module that it was.
                norm.forward = partial(self._forward, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for norm in self._norms:
                norm.__dict__.pop("forward", None)

    def settle(self) -> None:
        """After a step: running statistics that processes took from their own images become their mean."""
        if self._synchronised or self._team.alone or self.whole:
            return
        taken = [norm for norm in self._norms if norm.training and norm.running_mean is not None]
        if not taken:
            return
        buffers = [buffer for norm in taken for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
        flat = self._team.summed(torch.cat([buffer.flatten() for buffer in buffers])) / self._team.size
        for buffer, mean in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))

    def _forward(self, norm: _BatchNorm, features: Tensor) -> Tensor:
        if self.whole or not norm.training:
            return type(norm).forward(norm, features)
        track = partial(_track, norm)
        normalised: Tensor = _TeamNorm.apply(features, norm.weight, norm.bias, norm.eps, self._team, track)  # type: ignore[no-untyped-call]
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


class _TeamNorm(torch.autograd.Function):
    """(x - μ) / √(σ² + ε) · γ + β with the mean μ and variance σ² over the positions of all processes' images.

    Each process sends the mean and the squared deviations of its own images; joined they are exact, however far the
    means are apart.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, team: Team, track: Any
    ) -> Tensor:
        axes = [0, *range(2, features.ndim)]
        seen = _in_full(features)
        count = seen.numel() // seen.shape[1]
        variance, mean = torch.var_mean(seen, axes, correction=0)
        told = team.gathered(torch.cat([mean, variance, mean.new_full((1,), count)]))
        means, variances, counts = told[:, : len(mean)], told[:, len(mean) : -1], told[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
        track(mean, variance, total)
        scale = torch.rsqrt(variance + epsilon)
        ctx.save_for_backward(features, weight, mean, scale, total)
        ctx.team, ctx.bias_type = team, None if bias is None else bias.dtype
        # Evaluation's formula with these statistics, in one kernel.
        return functional.batch_norm(features, mean, variance, weight, bias, training=False, eps=epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, mean, scale, total = ctx.saved_tensors
        axes = [0, *range(2, features.ndim)]
        shape = [1, -1, *[1] * (features.ndim - 2)]
        slope = _in_full(gradient)
        normalised = (_in_full(features) - mean.view(shape)) * scale.view(shape)
        own = torch.stack([slope.sum(axes), (slope * normalised).sum(axes)])
        for_bias, for_weight = own.clone()
        # Of all images: what the shared mean and variance pass on.
        offset, lean = ctx.team.summed(own) / total
        inner = slope - offset.view(shape) - normalised * lean.view(shape)
        factor = scale if weight is None else scale * weight.to(scale.dtype)
        # Of affine parameters this process's own part: gradients are added up over processes later.
        return (
            (inner * factor.view(shape)).to(features.dtype),
            None if weight is None else for_weight.to(weight.dtype),
            None if ctx.bias_type is None else for_bias.to(ctx.bias_type),
            None,
            None,
            None,
        )


def _in_full(tensor: Tensor) -> Tensor:
    """Half precision as single: sums over a batch are taken in no less."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
