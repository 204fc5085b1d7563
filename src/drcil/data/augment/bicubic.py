"""Warps of RandAugment: shear, translate and rotate, all bicubic, one colour where nothing is covered.

All five are affine maps per image, so that images with different ones share one warp; it samples the same places as
Pillow's ``Image.transform`` with its bicubic filter. Values are one number per image, a float64 vector on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .pixels import cubic, on_device_of, pick, to_bytes


def rotate_map(height: int, width: int, degrees: Tensor) -> Tensor:
    """Turn the picture counterclockwise about its centre."""
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return torch.stack([cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y])


def shear_x_map(height: int, width: int, slopes: Tensor) -> Tensor:
    """Look in row y this many times y to the right."""
    return _unit_map(1, slopes)


def shear_y_map(height: int, width: int, slopes: Tensor) -> Tensor:
    """Look in column x this many times x further down."""
    return _unit_map(3, slopes)


def translate_x_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the width to the right, which moves the picture to the left."""
    return _unit_map(2, fractions * width)


def translate_y_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the height down, which moves the picture up."""
    return _unit_map(5, fractions * height)


def _unit_map(coefficient: int, values: Tensor) -> Tensor:
    """The identity, but for one coefficient."""
    one, zero = torch.ones_like(values), torch.zeros_like(values)
    matrix = [one, zero, zero, zero, one, zero]
    matrix[coefficient] = values
    return torch.stack(matrix)


BICUBIC: Mapping[str, Callable[[int, int, Tensor], Tensor]] = MappingProxyType(
    {
        "shearX": shear_x_map,
        "shearY": shear_y_map,
        "translateX": translate_x_map,
        "translateY": translate_y_map,
        "rotate": rotate_map,
    }
)
"""The operations by name: height, width and values to coefficients for ``warp``."""


def warp(images: Tensor, coefficients: Tensor, fill: Tensor) -> Tensor:
    """Sample each output pixel's source, x = a j + b i + c, y = d j + e i + f, in coordinates of pixel centres.

    Coefficients are (6, N), ``fill`` one level per channel. The cubic has a = -1, as in Pillow's transforms, and
    repeats the border; what lies outside the picture takes ``fill``.
    """
    count, channels, height, width = images.shape
    device = images.device
    a, b, c = coefficients.view(2, 3, count, 1, 1).unbind(1)
    i = torch.arange(height, dtype=torch.float64).view(-1, 1) + 0.5
    j = torch.arange(width, dtype=torch.float64) + 0.5
    # Places in double precision and on the CPU: a rounding there may choose another pixel.
    x, y = a * j + b * i + c
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = (on_device_of((place - 0.5 - first).float(), images) for place, first in ((x, left), (y, top)))
    columns, rows = (on_device_of(first.to(torch.int32), images) for first in (left, top))
    taps = torch.arange(-1, 3, dtype=torch.int32, device=device).view(-1, 1, 1)
    columns = (columns[:, None] + taps).clamp_(0, width - 1)
    lines = []
    for tap in range(-1, 3):
        places = columns + (rows + tap).clamp_(0, height - 1)[:, None] * width
        line = pick(images, places).float().view(count, channels, 4, height, width)
        lines.append(cubic(line.unbind(2), across[:, None]))
    sampled = cubic(lines, down[:, None])
    outside = on_device_of(fill.float(), images).view(-1, 1, 1)
    return to_bytes(torch.where(on_device_of(inside, images)[:, None], sampled, outside))
