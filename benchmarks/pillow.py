"""The `auto` augmentation the usual way: image by image with Pillow, each with its own draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from drcil.data.augment.pipeline import JITTER
from drcil.data.augment.policy import CIFAR10, IMAGENET, SubPolicy, magnitude
from drcil.data.sources.decode import random_box

Pixels = npt.NDArray[np.uint8]
Operations = tuple[tuple[str, float], ...]
_GREY = (128, 128, 128)


class Choice(NamedTuple):
    """What one image was dealt."""

    top: int
    left: int
    mirrored: bool
    brightness: float
    operations: Operations
    """AutoAugment's operations that are to happen, with their values."""
    hole_y: int
    hole_x: int


def deal(draws: random.Random, size: int, padding: int) -> Choice:
    """Random choices for an image of ``size`` pixels."""
    operations = dealt_operations(draws, CIFAR10)
    return Choice(
        draws.randint(0, 2 * padding),
        draws.randint(0, 2 * padding),
        draws.random() < 0.5,
        draws.uniform(1 - JITTER, 1 + JITTER),
        operations,
        draws.randrange(size),
        draws.randrange(size),
    )


def dealt_operations(draws: random.Random, policy: Sequence[SubPolicy]) -> Operations:
    """AutoAugment's operations that are to happen, with their values."""
    pair = draws.choice(policy)
    operations = []
    for name, chance, index in (pair[:3], pair[3:]):
        if draws.random() < chance:
            centre, swing = magnitude(name, index)
            operations.append((name, centre + draws.choice((-1, 1)) * swing))
    return tuple(operations)


def augmented(pixels: Pixels, choice: Choice, padding: int) -> Pixels:
    """Padded crop, flip, brightness, AutoAugment and a hole of half the side; (H, W, 3) to the same."""
    size = len(pixels)
    picture = ImageOps.expand(Image.fromarray(pixels), padding)
    picture = picture.crop((choice.left, choice.top, choice.left + size, choice.top + size))
    result = np.array(painted(picture, choice.mirrored, choice.brightness, choice.operations))
    reach = size // 4
    rows = slice(max(0, choice.hole_y - reach), choice.hole_y + reach)
    result[rows, max(0, choice.hole_x - reach) : choice.hole_x + reach] = 0
    return result


def photograph(picture: Image.Image, size: int, draws: random.Random) -> Pixels:
    """A random crop scaled to ``size``, then flip, brightness and AutoAugment, as (size, size, 3)."""
    box = random_box(*picture.size, draws)
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    cropped = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=edges)
    mirrored, brightness = draws.random() < 0.5, draws.uniform(1 - JITTER, 1 + JITTER)
    return np.array(painted(cropped, mirrored, brightness, dealt_operations(draws, IMAGENET)))


def painted(picture: Image.Image, mirrored: bool, brightness: float, operations: Operations) -> Image.Image:
    """Flip, brightness and AutoAugment."""
    if mirrored:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = ImageEnhance.Brightness(picture).enhance(brightness)
    for name, value in operations:
        picture = operate(picture, name, value)
    return picture


def operate(picture: Image.Image, name: str, value: float) -> Image.Image:
    """One operation of AutoAugment."""
    match name:
        case "shearX":
            return _warp(picture, (1, value, 0, 0, 1, 0), Image.Resampling.BICUBIC)
        case "shearY":
            return _warp(picture, (1, 0, 0, value, 1, 0), Image.Resampling.BICUBIC)
        case "translateX":
            return _warp(picture, (1, 0, value * picture.width, 0, 1, 0), Image.Resampling.NEAREST)
        case "translateY":
            return _warp(picture, (1, 0, 0, 0, 1, value * picture.height), Image.Resampling.NEAREST)
        case "rotate":
            turned = picture.convert("RGBA").rotate(value)
            ground = Image.new("RGBA", turned.size, (128,) * 4)
            return Image.composite(turned, ground, turned).convert(picture.mode)
        case "posterize":
            return ImageOps.posterize(picture, int(value))
        case "solarize":
            return ImageOps.solarize(picture, value)  # type: ignore[arg-type]  # published programs pass fractions too
        case "autocontrast":
            return ImageOps.autocontrast(picture)
        case "equalize":
            return ImageOps.equalize(picture)
        case "invert":
            return ImageOps.invert(picture)
        case "color":
            return ImageEnhance.Color(picture).enhance(value)
        case "contrast":
            return ImageEnhance.Contrast(picture).enhance(value)
        case "sharpness":
            return ImageEnhance.Sharpness(picture).enhance(value)
        case _:
            return ImageEnhance.Brightness(picture).enhance(value)


def _warp(picture: Image.Image, matrix: Sequence[float], filter: Image.Resampling) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, filter, fillcolor=_GREY)


class PillowImages(Dataset[tuple[Tensor, int]]):
    """Labelled images as a map-style dataset: an item is augmented, made a float tensor and normalised."""

    def __init__(
        self, pixels: Pixels, labels: Sequence[int], padding: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.pixels, self.labels, self.padding = pixels, labels, padding
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self._draws: random.Random | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._draws is None:
            # Torch gives every worker process a seed of its own.
            self._draws = random.Random(torch.initial_seed())
        pixels = self.pixels[index]
        view = augmented(pixels, deal(self._draws, len(pixels), self.padding), self.padding)
        image = torch.from_numpy(view).permute(2, 0, 1).contiguous().float().div_(255)
        return image.sub_(self.mean).div_(self.std), self.labels[index]
