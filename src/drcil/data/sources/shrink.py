"""Smaller images by exact area averaging, done once when images are loaded into memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UserError

_CHUNK = 1024


def overlaps(length: int, size: int) -> Tensor:
    """How much of input pixel j lies under output pixel i: whole numbers (size, length), rows summing to ``length``.

    On a ruler with ``length * size`` marks an input pixel is ``size`` marks wide and an output pixel ``length``.
    """
    outer = torch.arange(size, dtype=torch.float64)[:, None] * length
    inner = torch.arange(length, dtype=torch.float64)[None, :] * size
    shared = torch.minimum(outer + length, inner + size) - torch.maximum(outer, inner)
    return shared.clamp_min(0)


def shrink(pixels: Tensor, size: int, what: str = "the images") -> Tensor:
    """uint8 (N, C, H, W) to uint8 (N, C, size, size): the area-weighted mean, rounded to nearest (halves up).

    Every sum is a whole number far below 2**53, so float64 computes it exactly whatever the ratio.
    ``F.interpolate(mode="area")`` would not do: it weights partly covered pixels as if they were covered fully.
    """
    height, width = pixels.shape[-2:]
    if size < 1 or size > min(height, width):
        raise UserError(
            f"image size {size} is not possible for {what}, which are {height}x{width}; "
            f"images in memory are only made smaller, so give at most {min(height, width)}"
        )
    if (height, width) == (size, size):
        return pixels
    down, across = overlaps(height, size).T, overlaps(width, size).T
    area = height * width
    small = torch.empty((*pixels.shape[:-2], size, size), dtype=torch.uint8)
    for start in range(0, len(pixels), _CHUNK):
        sums = ((pixels[start : start + _CHUNK].double() @ across).mT @ down).mT
        small[start : start + _CHUNK] = ((sums + area / 2) / area).floor().to(torch.uint8)
    return small
