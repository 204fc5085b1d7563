"""ConViT encoders, and the transformer layers they share with task attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError
from ..seeding import bernoulli_by_image
from .backbone import BACKBONES, Backbone, Features, of_family

SPREAD = 0.02
"""Standard deviation of the initial weights, positions and tokens."""


def truncated_normal_linear(channels_in: int, channels: int, bias: bool = True) -> nn.Linear:
    """A layer with weights from a truncated normal distribution; its bias is zero."""
    layer = nn.Linear(channels_in, channels, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=SPREAD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def truncated_normal_tokens(*shape: int) -> nn.Parameter:
    """Learnt tokens or positions, from the same distribution as weights."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(*shape), std=SPREAD))


DROP_PATH = 0.1
"""Share of the paths that the last block of a whole transformer drops: of the task attention behind an encoder. Earlier
blocks drop less, in equal steps from none.
"""


class DropPath(nn.Module):
    """Stochastic depth: training drops a residual path for a share of the images and scales it up for the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, path: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return path
        mask = bernoulli_by_image(len(path), 1 - self.rate, path).view(-1, *[1] * (path.ndim - 1))
        return path * mask.div_(1 - self.rate)


class Perceptron(nn.Module):
    """Two layers with a GELU between them, on each token."""

    def __init__(self, channels: int, ratio: int = 4) -> None:
        super().__init__()
        self.widen = truncated_normal_linear(channels, ratio * channels)
        self.narrow = truncated_normal_linear(ratio * channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(tokens)))
        return narrowed


class GatedAttention(nn.Module):
    """Self-attention among the patches of a square grid. Head h gives patch i, with a gate σ_h = sigmoid(g_h),

        (1 − σ_h) Σ_j softmax_j(q_i·k_j / sqrt(d)) v_j  +  σ_h Σ_j softmax_j(u_h·r_ij + c_h) v_j,

    where r_ij = (δx, δy, δx² + δy²) leads from patch i to patch j. Both weights sum to one over j, and so does their
    mixture: nothing is left to normalise.
    """

    offsets: Tensor

    def __init__(self, channels: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.content = truncated_normal_linear(channels, 2 * channels, bias=False)
        """To queries and keys."""
        self.value = nn.Linear(channels, channels, bias=False)
        self.position = truncated_normal_linear(3, heads)
        """u and c, by head."""
        self.gate = nn.Parameter(torch.ones(heads))
        self.out = truncated_normal_linear(channels, channels)
        steps = torch.arange(side, dtype=torch.get_default_dtype())
        # Along one axis: from row to row, and likewise from column to column.
        self.register_buffer("offsets", steps[None, :] - steps[:, None], persistent=False)
        self._initialise_as_convolution()

    @torch.no_grad()
    def _initialise_as_convolution(self) -> None:
        """Let each of the first heads copy one neighbour in a square window, like the weights of a small convolution.

        With u = (2a, 2b, −1) the positional score is −(δx − a)² − (δy − b)² but for a constant.
        """
        nn.init.eye_(self.value.weight)
        window = math.isqrt(self.heads)
        reach = (window - 1) / 2
        for head in range(window**2):
            across, down = head // window - reach, head % window - reach
            self.position.weight[head] = torch.tensor([2 * across, 2 * down, -1.0])

    def forward(self, tokens: Tensor) -> Tensor:
        images, patches, channels = tokens.shape
        shape = (images, patches, -1, channels // self.heads)
        query, key = self.content(tokens).chunk(2, dim=2)
        query, key, value = (tensor.view(shape).transpose(1, 2) for tensor in (query, key, self.value(tokens)))
        content = functional.scaled_dot_product_attention(query, key, value)
        positional = torch.einsum("hij,nhjd->nhid", self.positional_attention(), value)
        gate = torch.sigmoid(self.gate)[:, None, None]
        mixed = torch.lerp(content, positional, gate.to(content.dtype))
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(tokens.shape))
        return attended

    def positional_attention(self) -> Tensor:
        """softmax_j(u_h·r_ij + c_h), (heads, T, T): attention by position only.

        The score is a sum of one along x and one along y, so the softmax is the product of one along each.
        """
        along_x, along_y, spread = self.position.weight.T[:, :, None, None]
        quadratic = spread * self.offsets.square()
        columns = torch.softmax(along_x * self.offsets + quadratic + self.position.bias[:, None, None], dim=2)
        rows = torch.softmax(along_y * self.offsets + quadratic, dim=2)
        # Patches are counted row by row: (y of i, x of i, y of j, x of j).
        attention = rows[:, :, None, :, None] * columns[:, None, :, None, :]
        return attention.flatten(3).flatten(1, 2)


class Block(nn.Module):
    """Attention, then a perceptron, each on normalised tokens and with a residual connection."""

    def __init__(self, channels: int, heads: int, side: int, drop_path: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(channels)
        self.attention = GatedAttention(channels, heads, side)
        self.before_perceptron = nn.LayerNorm(channels)
        self.perceptron = Perceptron(channels)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.drop_path(self.attention(self.before_attention(tokens)))
        out: Tensor = tokens + self.drop_path(self.perceptron(self.before_perceptron(tokens)))
        return out


class ConViT(Backbone):
    """An encoder of patches, for images of one size. There is no class token, and no normalisation at the end.

    ``forward`` gives the tokens as a map, one position for each patch, which all heads read.
    """

    def __init__(
        self,
        name: str,
        channels_in: int,
        *,
        image_size: int,
        patch: int,
        channels: int,
        heads: int = 12,
        depth: int = 5,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise UserError(
                f"backbone '{name}' cuts images into patches of {patch} pixels, so it cannot see images of "
                f"{image_size}: give a multiple of {patch} as image size, or choose another backbone"
            )
        self.name, self.channels_in, self.image_size, self.channels = name, channels_in, image_size, channels
        self.heads, self.side = heads, image_size // patch
        self.patches = nn.Conv2d(channels_in, channels, patch, stride=patch)
        self.positions = truncated_normal_tokens(self.side**2, channels)
        self.blocks = nn.Sequential(
            # From 0 in equal steps to the rate of a decoder behind these blocks.
            *(Block(channels, heads, self.side, DROP_PATH * index / depth) for index in range(depth))
        )

    def tokens(self, images: Tensor) -> Tensor:
        """One token for each patch, row by row, (N, T, channels)."""
        # Laid out token by token, or every normalisation would have to copy them first.
        patches = self.patches(images).flatten(2).transpose(1, 2).contiguous()
        tokens: Tensor = self.blocks(patches + self.positions)
        return tokens

    def no_weight_decay(self) -> set[str]:
        """Parameters that the decay of weights leaves out."""
        return {"positions"}

    def forward(self, images: Tensor) -> Features:
        tokens = self.tokens(images)
        last = tokens.transpose(1, 2).view(-1, self.channels, self.side, self.side)
        return Features(stages=(), last=last, pooled=torch.mean(tokens, dim=1))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "channels_in": self.channels_in, "image_size": self.image_size}


@BACKBONES.register("convit")
@of_family("transformer")
def convit(channels_in: int, *, image_size: int) -> ConViT:
    """DyTox's ConViT: 384 channels, 8.9 M parameters; patches of 4 pixels up to a size of 64, of 16 above."""
    return ConViT("convit", channels_in, image_size=image_size, patch=4 if image_size <= 64 else 16, channels=384)


@BACKBONES.register("convit-small")
@of_family("transformer")
def convit_small(channels_in: int, *, image_size: int) -> ConViT:
    """A quarter of ConViT's width, for CIFAR-sized images on a CPU: 96 channels, 0.56 M parameters, patches of 4."""
    # 9.3 million multiplications for an image of 16 pixels; ResNet-20 takes 10.2 million.
    return ConViT("convit-small", channels_in, image_size=image_size, patch=4, channels=96)


@BACKBONES.register("convit-digits")
@of_family("transformer")
def convit_digits(channels_in: int, *, image_size: int) -> ConViT:
    """A ConViT for 8×8 digits: 48 channels, 0.06 M parameters, patches of 2, milliseconds per step on a CPU."""
    return ConViT("convit-digits", channels_in, image_size=image_size, patch=2, channels=48, heads=4, depth=2)
