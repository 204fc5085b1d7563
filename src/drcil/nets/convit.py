"""ConViT encoders, as DyTox has them (Douillard et al. 2022): patches, learnt positions, gated attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .attention import GatedAttention
from .features import BACKBONES, Backbone, Features, of_family
from .transformer import DROP_PATH, DropPath, Perceptron, drawn_tokens


class Block(nn.Module):
    """Attention, then a perceptron, each on normalised tokens and added to what came in."""

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
        self.positions = drawn_tokens(self.side**2, channels)
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
