"""Colour operations of AutoAugment and RandAugment, equal to Pillow's on 8-bit images.

Most are *pointwise*: what becomes of a pixel depends on its value alone, once the image is known. They are written
as tables, 256 entries per image and channel, so that images with different operations, and one operation after the
other, share one look-up. Values are one number per image, a float64 vector on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .pixels import LEVELS, on_device_of, to_bytes
from .tones import Shown


def blend(base: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """base + factor * (image - base), clipped and cut off to whole levels; a factor above 1 moves away from base."""
    return to_bytes((images - base).mul_(_per_image(factors, images)).add_(base))


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return on_device_of(values.float(), images).view(-1, *[1] * (images.ndim - 1))


def grey(images: Tensor) -> Tensor:
    """Luma (N, 1, H, W) after ITU-R 601-2, in Pillow's 16-bit arithmetic."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with black."""
    return to_bytes(images.float().mul_(_per_image(factors, images)))


def colour(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the image's own grey version."""
    return blend(grey(images).float(), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with a smoothed image: neighbours count 1, the pixel itself 5, sum 13; border pixels are not smoothed."""
    smooth = images.float()
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    block = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = smooth[:, :, 1:-1, 1:-1]
    inner.mul_(4).add_(block).div_(13).round_()
    return blend(smooth, images, factors)


def solarize_table(shown: Shown, thresholds: Tensor) -> Tensor:
    """Invert the levels from the threshold upwards; all of them at 0."""
    levels = shown.levels
    kept = levels < on_device_of(thresholds.float(), levels).view(-1, 1, 1)
    return torch.where(kept, levels, LEVELS - 1 - levels).to(torch.uint8)


def solarize_add_table(shown: Shown, added: Tensor) -> Tensor:
    """Add this much to the levels of the darker half, up to white."""
    levels = shown.levels
    brighter = (levels + on_device_of(added.int(), levels).view(-1, 1, 1)).clamp_(max=LEVELS - 1)
    return torch.where(levels < LEVELS // 2, brighter, levels).to(torch.uint8)


def posterize_table(shown: Shown, bits: Tensor) -> Tensor:
    """Keep the highest bits of every level."""
    levels = shown.levels
    dropped = on_device_of((2 ** (8 - bits)).int(), levels).view(-1, 1, 1)
    return (levels & -dropped).to(torch.uint8)


def brightness_table(shown: Shown, factors: Tensor) -> Tensor:
    """Blend with black."""
    return brightness(shown.levels.expand(len(shown), 1, -1), factors)


def contrast_table(shown: Shown, factors: Tensor) -> Tensor:
    """Blend with the image's mean grey, rounded."""
    luma = grey(shown.pixels()).flatten(1)
    pixels = luma.shape[1]
    mean = (2 * luma.sum(1) + pixels) // (2 * pixels)
    return blend(mean.float().view(-1, 1, 1), shown.levels.expand(len(shown), 1, -1), factors)


def autocontrast_table(shown: Shown, _: Tensor) -> Tensor:
    """Stretch each channel so that its darkest level becomes 0 and its brightest 255.

    In whole numbers; Pillow's floating point falls one level short where the quotient is whole.
    """
    levels, pixels = shown.levels, shown.pixels().flatten(2)
    low, high = pixels.amin(2, keepdim=True).int(), pixels.amax(2, keepdim=True).int()
    stretched = ((levels - low) * (LEVELS - 1)) // (high - low).clamp(min=1)
    return torch.where(high > low, stretched.clamp_(0, LEVELS - 1), levels).to(torch.uint8)


def equalize_table(shown: Shown, _: Tensor) -> Tensor:
    """Spread the levels of each channel by its cumulative histogram; left alone where the step would be nothing."""
    counts = shown.counts()
    brightest = counts.gather(2, ((counts > 0) * shown.levels).amax(2, keepdim=True).long())
    through = counts.cumsum(2)
    step = (through[..., -1:] - brightest) // (LEVELS - 1)
    spread = (step // 2 + through - counts) // step.clamp(min=1)
    return torch.where(step > 0, spread.clamp_(max=LEVELS - 1), shown.levels).to(torch.uint8)


TABLES: Mapping[str, Callable[[Shown, Tensor], Tensor]] = MappingProxyType(
    {
        "invert": solarize_table,
        "solarize": solarize_table,
        "posterize": posterize_table,
        "brightness": brightness_table,
        "contrast": contrast_table,
        "autocontrast": autocontrast_table,
        "equalize": equalize_table,
    }
)
"""The pointwise operations by name: images as they are shown, and values, to tables (N, C or 1, 256)."""
