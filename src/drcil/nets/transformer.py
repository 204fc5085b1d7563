"""What the blocks of vision transformers share: dropped paths, the perceptron of a token, initial weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..keys import bernoulli_by_image

SPREAD = 0.02
"""Standard deviation of the initial weights, positions and tokens."""


def drawn_linear(channels_in: int, channels: int, bias: bool = True) -> nn.Linear:
    """A layer with weights from a truncated normal distribution; its bias is zero."""
    layer = nn.Linear(channels_in, channels, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=SPREAD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def drawn_tokens(*shape: int) -> nn.Parameter:
    """Learnt tokens or positions, from the same distribution as weights."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(*shape), std=SPREAD))


DROP_PATH = 0.1
"""Share of the paths that the last block of a whole transformer drops: of the task attention behind an encoder. Earlier
blocks drop less, in equal steps from none.
"""


class DropPath(nn.Module):
    """Stochastic depth: in training a residual path is left out for a share of the images, and larger for the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, path: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return path
        kept = bernoulli_by_image(len(path), 1 - self.rate, path).view(-1, *[1] * (path.ndim - 1))
        return path * kept.div_(1 - self.rate)


class Perceptron(nn.Module):
    """What follows attention, on each token alone: wider, GELU, and back."""

    def __init__(self, channels: int, ratio: int = 4) -> None:
        super().__init__()
        self.widen = drawn_linear(channels, ratio * channels)
        self.narrow = drawn_linear(ratio * channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(tokens)))
        return narrowed
