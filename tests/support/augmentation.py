"""Augmentation operations of drcil and of Pillow on the same pictures."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from drcil.data.augment.operations import Toned
from drcil.data.augment.policies import OperationSet


def applied(operations: OperationSet, images: Tensor, chosen: Tensor, values: Tensor) -> Tensor:
    """Each image after the operation of its number."""
    toned = Toned(images)
    operations.apply(toned, chosen, values)
    return toned.settled()


def difference(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


def pictures(size: int) -> Tensor:
    """Noise of full and of narrow range, a ramp, a picture with few levels and a flat one."""
    draw = torch.Generator().manual_seed(size)
    full = torch.randint(256, (2, 3, size, size), generator=draw)
    narrow = torch.randint(90, 140, (1, 3, size, size), generator=draw)
    ramp = (torch.arange(size)[:, None] * 3 + torch.arange(size) * 2).clamp(max=255).expand(1, 3, -1, -1)
    few = torch.randint(3, (1, 3, size, size), generator=draw) * 100
    flat = torch.full((1, 3, size, size), 77)
    return torch.cat([full, narrow, ramp, few, flat]).to(torch.uint8)


Colour = tuple[int, int, int]


def with_pillow(
    image: Image.Image, operation: str, value: float, fill: Colour = (128, 128, 128), bicubic: bool = False
) -> Image.Image:
    """The operation as published programs perform it: those of AutoAugment, or of timm with ``bicubic`` warps."""
    width, height = image.size
    resampling = Image.Resampling.BICUBIC if bicubic or operation.startswith("shear") else Image.Resampling.NEAREST

    def warp(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resampling, fillcolor=fill)

    match operation:
        case "shearX":
            return warp(1, value, 0, 0, 1, 0)
        case "shearY":
            return warp(1, 0, 0, value, 1, 0)
        case "translateX":
            return warp(1, 0, value * width, 0, 1, 0)
        case "translateY":
            return warp(1, 0, 0, 0, 1, value * height)
        case "rotate" if bicubic:
            return image.rotate(value, Image.Resampling.BICUBIC, fillcolor=fill)
        case "rotate":
            turned = image.convert("RGBA").rotate(value)
            return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert("RGB")
        case "color" | "contrast" | "brightness" | "sharpness":
            return getattr(ImageEnhance, operation.capitalize())(image).enhance(value)  # type: ignore[no-any-return]
        case "posterize":
            # No bit at all is black; later versions of Pillow refuse it.
            return ImageOps.posterize(image, int(value)) if value else Image.new("RGB", image.size)
        case "solarize":
            return ImageOps.solarize(image, value)  # type: ignore[arg-type]  # published programs pass fractions too
        case "solarizeAdd":
            return image.point([min(255, level + int(value)) if level < 128 else level for level in range(256)] * 3)
        case "autocontrast" | "equalize" | "invert":
            return getattr(ImageOps, operation)(image)  # type: ignore[no-any-return]
    raise AssertionError(operation)


def reference(
    images: Tensor, operation: str, values: Tensor, fill: Colour = (128, 128, 128), bicubic: bool = False
) -> Tensor:
    """The same for a batch."""
    changed = [
        with_pillow(Image.fromarray(image.permute(1, 2, 0).numpy()), operation, float(value), fill, bicubic)
        for image, value in zip(images, values, strict=True)
    ]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in changed])).permute(0, 3, 1, 2)
