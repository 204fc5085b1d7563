"""The test view of pictures as a graph: what Pillow makes of an image, bit for bit, in matrix products.

Pillow scales along one axis after the other. Every pixel of a result is a weighted sum of a row, the weights a
triangle, in whole multiples of 2⁻²², and the sum is rounded to a level. Here the weights are computed in whole numbers
from the size of the image and applied as a matrix. A product of 30 bits is more than float32 holds, so a weight is
split into two halves of 11 bits, whose sums are exact.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..data.sources.decode import short_side

_HALF = 11
"""The bits of each half of a weight."""
_ONE = 2**26
"""A pixel in whole numbers. Pillow keeps the edges of a box as float32, which these hold."""


class PictureView(nn.Module):
    """uint8 images (N, H, W, C) of any height and width to levels (N, C, size, size), as float32.

    The short side is scaled to ``short_side(size)``, then the central square is taken.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.resize = size, max(size, short_side(size))
        self.tall_first = columns_first_if_tall()

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[1], images.shape[2]
        # As tensors, with which every format can count on.
        down, across = (torch.full((), length, dtype=torch.int64, device=images.device) for length in (height, width))
        short = torch.minimum(down, across)
        levels = images.permute(0, 3, 1, 2).float()
        rows, columns = self._weights(across, width, short), self._weights(down, height, short).transpose(0, 1)
        if not self.tall_first:
            return self._rows_first(levels, rows, columns)
        tall = down > (2 * across - self.size).clamp_min(self.size)
        if torch.compiler.is_compiling():
            viewed: Tensor = torch.cond(tall, self._columns_first, self._rows_first, (levels, rows, columns))
            return viewed
        return (self._columns_first if tall else self._rows_first)(levels, rows, columns)

    def _rows_first(self, levels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return self._down(self._across(levels, rows), columns)

    def _columns_first(self, levels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return self._across(self._down(levels, columns), rows)

    def _across(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Each row of levels (…, width) scaled and cut to (…, size)."""
        sums = levels @ weights
        return _rounded(sums[..., : self.size], sums[..., self.size :])

    def _down(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Each column likewise."""
        sums = weights @ levels
        return _rounded(sums[..., : self.size, :], sums[..., self.size :, :])

    def _weights(self, length: Tensor, pixels: int, short: Tensor) -> Tensor:
        """What each of so many pixels adds to each of the result, (length, 2 x size): upper halves, then lower ones."""
        size, device = self.size, length.device
        scaled = torch.floor_divide(self.resize * length, short)
        spare = scaled - size
        half = torch.floor_divide(spare, 2)
        # Halves are rounded to even numbers.
        start = half + (spare - 2 * half) * (half - 2 * torch.floor_divide(half, 2))
        left = (start * length).float() / scaled.float()
        right = ((start + size) * length).float() / scaled.float()
        span, left = ((right - left) * _ONE).long(), (left * _ONE).long()
        # All of the following in units of 1 / (2 size _ONE) of a pixel.
        centre = 2 * size * left + (2 * torch.arange(size, device=device) + 1) * span
        pixel = torch.full((), size * _ONE, dtype=torch.int64, device=device)
        place = (2 * torch.arange(pixels, device=device) + 1) * pixel
        reach = 2 * torch.maximum(span, pixel)
        apart = (place[:, None] - centre[None, :]).abs()
        # Not by clamping, of which onnxruntime sees 32 bits.
        triangle = torch.where(apart < reach, reach - apart, torch.zeros_like(apart))
        total = triangle.sum(dim=0, keepdim=True)
        # Long division, half by half: the whole would be more than 64 bits hold. Only the last bit is rounded.
        upper = torch.floor_divide(triangle * 2**_HALF, total)
        rest = triangle * 2**_HALF - upper * total
        lower = torch.floor_divide(rest * 2 ** (_HALF + 1) + total, 2 * total)
        return torch.cat([upper, lower], dim=1).float()


def _rounded(upper: Tensor, lower: Tensor) -> Tensor:
    """Whole levels from the sums with both halves of the weights."""
    carried = upper + torch.floor(lower / 2**_HALF)
    return torch.floor((carried + 2 ** (_HALF - 1)) / 2**_HALF)


@cache
def columns_first_if_tall() -> bool:
    """Whether the Pillow that is installed scales tall pictures along their columns first, as newer ones do.

    Levels are rounded in between, so the order is seen.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (64, 16), dtype=np.uint8)
    picture, filter = Image.fromarray(pixels), Image.Resampling.BILINEAR
    columns_first = picture.resize((16, 8), filter).resize((8, 8), filter)
    return picture.resize((8, 8), filter).tobytes() == columns_first.tobytes()
