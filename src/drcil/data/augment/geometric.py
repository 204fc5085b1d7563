"""Warps of AutoAugment: translate and rotate (nearest pixel) and shear (bicubic), grey where nothing is covered.

Translations and rotations are affine maps per image, so that images with different ones share one fetch; the maps
sample the same places as Pillow's ``Image.transform``, whose fixed-point arithmetic they follow to the bit. Values
are one number per image, a float64 vector on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from .pixels import cubic, on_device_of, pick, to_bytes

GREY = 128
"""The fill of places that no pixel of the source covers."""
ONE = 1 << 16
"""One pixel in Pillow's 16.16 fixed-point coordinates."""


def rotate_map(height: int, width: int, degrees: Tensor) -> Tensor:
    """Turn the picture counterclockwise about its centre."""
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    # The first pixel's own centre is half a pixel from the corner.
    x, y = width / 2 - 0.5, height / 2 - 0.5
    first_x, first_y = width / 2 - cos * x + sin * y, height / 2 - sin * x - cos * y
    return _fixed(torch.stack([cos, -sin, first_x, sin, cos, first_y]))


def translate_x_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the width to the right, which moves the picture to the left."""
    return _translate_map(2, fractions * width)


def translate_y_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the height down, which moves the picture up."""
    return _translate_map(5, fractions * height)


def _translate_map(coefficient: int, pixels: Tensor) -> Tensor:
    # Pillow leaves fixed point aside where the axes stay apart, so the shift is rounded before.
    one, zero = torch.ones_like(pixels), torch.zeros_like(pixels)
    matrix = [one, zero, zero, zero, one, zero]
    matrix[coefficient] = (pixels + 0.5).floor()
    return _fixed(torch.stack(matrix))


def _fixed(matrix: Tensor) -> Tensor:
    return (matrix * ONE + 0.5).floor().to(torch.int32)


AFFINE: Mapping[str, Callable[[int, int, Tensor], Tensor]] = MappingProxyType(
    {"translateX": translate_x_map, "translateY": translate_y_map, "rotate": rotate_map}
)
"""The operations that move pixels, by name: height, width and values to coefficients for ``fetch``."""


def fetch(images: Tensor, coefficients: Tensor) -> Tensor:
    """Fetch for each output pixel the source pixel it falls into, or grey.

    Coefficients are (6, N), fixed point: the source of row i, column j is x = a j + b i + c, y = d j + e i + f.
    """
    count, _, height, width = images.shape
    device = images.device
    a, b, c = on_device_of(coefficients, images).view(2, 3, count, 1, 1).unbind(1)
    i = torch.arange(height, dtype=torch.int32, device=device).view(-1, 1)
    j = torch.arange(width, dtype=torch.int32, device=device)
    x, y = (a * j + (b * i + c)) >> 16
    # A grey frame of one pixel stands for all that lies outside.
    framed = F.pad(images, (1, 1, 1, 1), value=GREY)
    places = (y.clamp_(-1, height) + 1) * (width + 2) + (x.clamp_(-1, width) + 1)
    return pick(framed, places).view(images.shape)


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Sample row y at x + slope * y (pixel centres), bicubic with a = -1 as in Pillow's transforms.

    The offset is the same along a row, so the cubic runs through four shifted copies of it.
    """
    count, channels, height, width = images.shape
    if not count:
        return images.clone()
    device = images.device
    offset = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)
    whole = offset.floor()
    shift = on_device_of((offset - whole).float(), images)[:, None, :, None]
    # Beyond its ends a row goes on as it ends, as far as any is shifted, and one and two pixels more for the taps.
    reach = int(whole.abs().max()) + 2
    ends = (images[..., :1], images[..., -1:])
    before, after = (end.expand(-1, -1, -1, reach) for end in ends)
    rows = torch.cat([before, images, after], dim=3)
    starts = torch.arange(count * channels * height, device=device).view(count, channels, height) * rows.shape[3]
    starts += on_device_of(whole.long(), images)[:, None] + (reach - 1)
    runs = rows.flatten().unfold(0, width + 3, 1).index_select(0, starts.flatten())
    runs = runs.view(count, channels, height, width + 3)
    sheared = cubic([runs[..., tap : tap + width].float() for tap in range(4)], shift)
    columns = torch.arange(width, device=device)
    bounds = (-0.5 - offset, width - 0.5 - offset)
    first, last = (on_device_of(bound.ceil().long(), images)[:, None, :, None] for bound in bounds)
    return to_bytes(torch.where((columns >= first) & (columns < last), sheared, GREY))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Sample column x at y + slope * x: a horizontal shear of the transposed images."""
    return shear_x(images.transpose(2, 3), slopes).transpose(2, 3)
