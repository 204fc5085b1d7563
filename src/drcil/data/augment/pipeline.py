"""The training augmentations known by name: which steps, in which order, for which images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from ...keys import Draws, Share
from ...registry import Registry
from ..datasets.dataset import DataSpec
from . import colour, framing
from .pixels import in_pieces
from .policy import POLICIES, AutoAugment
from .tones import Toned, is_large

Step = Callable[[Tensor, Draws], Tensor]

JITTER = 63 / 255
"""Brightness factors are uniform in 1 - JITTER .. 1 + JITTER."""


@dataclass(frozen=True)
class Augment:
    """Steps applied in turn to a batch: uint8 images in, uint8 images of the same shape out.

    The result is a function of the images and of what is drawn; the images given are left as they are.
    """

    steps: tuple[Step, ...]
    crops_files: bool
    """Sources on disk shall give their random-resized crop (the training view); no step here crops then."""

    def __call__(self, images: Tensor, draws: Draws | torch.Generator) -> Tensor:
        """A generator alone draws for the images that are given."""
        if isinstance(draws, torch.Generator):
            draws = Draws(draws, Share(len(images)))
        # Small kernels are many here, and inference mode makes each cheaper; the copy is an ordinary tensor again.
        with torch.inference_mode():
            augmented = images
            for step in self.steps:
                augmented = step(augmented, draws)
        return augmented.clone()

    def then(self, *steps: Step) -> Augment:
        return replace(self, steps=(*self.steps, *steps))


AUGMENTS: Registry[Callable[[DataSpec, bool], Augment]] = Registry("augmentation", "drcil.data.augment")
"""From what is known of the images, and whether they are in memory, to what is done to them in training."""


def build_augment(name: str, spec: DataSpec, in_memory: bool) -> Augment:
    """The augmentation of this name for images of this kind, in memory or on disk."""
    return AUGMENTS[name](spec, in_memory)


@AUGMENTS.register("none")
def no_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """The images as they are."""
    return Augment((), crops_files=False)


@AUGMENTS.register("crop")
def crop_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """A random crop, and a flip where the images allow it. PyCIL's usual augmentation for ImageNet100.

    The crop is a shift after zero padding, or a random-resized crop, cut from the file where images are on disk.
    """
    if spec.crop == "resized":
        crop = Augment((random_resized_crop,) if in_memory else (), crops_files=not in_memory)
    else:
        crop = Augment((RandomShift(spec.padding),), crops_files=False)
    return crop.then(random_flip) if spec.flip else crop


@AUGMENTS.register("resized")
def resized_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """Zero padding, then a random-resized crop, and a flip where the images allow it. For long-tailed streams.

    Images whose crop is a random-resized one anyway are not padded.
    """
    if spec.crop == "resized":
        return crop_augment(spec, in_memory)
    crop = Augment((PaddedResizedCrop(spec.padding),), crops_files=False)
    return crop.then(random_flip) if spec.flip else crop


@AUGMENTS.register("basic")
def basic_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """As crop, then brightness where the images allow it. PyCIL's usual augmentation for CIFAR and ImageNet1000."""
    crop = crop_augment(spec, in_memory)
    return crop.then(random_brightness) if spec.brightness else crop


@AUGMENTS.register("auto")
def auto_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """As basic, then AutoAugment and cutout where the images allow them."""
    if spec.policy is None:
        augment = basic_augment(spec, in_memory)
    else:
        policy = AutoAugment(POLICIES[spec.policy], begin=brightened if spec.brightness else None)
        augment = crop_augment(spec, in_memory).then(policy)
    return augment.then(random_cutout) if spec.cutout else augment


@dataclass(frozen=True)
class RandomShift:
    """Zero padding, then a crop of the original size at a uniform place."""

    padding: int

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        corners = torch.randint(2 * self.padding + 1, (2, draws.count), generator=draws.generator)
        top, left = draws.taken(corners, dim=1)
        return framing.pad_crop(images, self.padding, top, left)


@dataclass(frozen=True)
class PaddedResizedCrop:
    """Zero padding, then a random box of the padded image, scaled to the original size."""

    padding: int

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = (side + 2 * self.padding for side in images.shape[2:])
        return framing.padded_resized_crop(images, self.padding, _boxes(height, width, draws))


def random_resized_crop(images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[2:]
    return framing.resized_crop(images, _boxes(height, width, draws))


def _boxes(height: int, width: int, draws: Draws) -> Tensor:
    return draws.taken(framing.draw_boxes(draws.count, height, width, draws.generator))


def random_flip(images: Tensor, draws: Draws) -> Tensor:
    return framing.flip(images, draws.taken(torch.rand(draws.count, generator=draws.generator)) < 0.5)


def random_brightness(images: Tensor, draws: Draws) -> Tensor:
    return in_pieces(colour.brightness, images, _factors(draws))


def brightened(images: Tensor, draws: Draws) -> Toned:
    """The same; put off where images are large, so that the look-up of another operation does it."""
    factors = _factors(draws)
    if not is_large(images):
        return Toned(in_pieces(colour.brightness, images, factors), own=True)
    toned, every = Toned(images), torch.arange(len(images))
    toned.tone(every, colour.brightness_table(toned.shown(every), factors))
    return toned


def _factors(draws: Draws) -> Tensor:
    factors = torch.empty(draws.count, dtype=torch.float64)
    return draws.taken(factors.uniform_(1 - JITTER, 1 + JITTER, generator=draws.generator))


def random_cutout(images: Tensor, draws: Draws) -> Tensor:
    """One square hole of half the image's side (16 of 32 pixels), its centre uniform over the image."""
    height, width = images.shape[2:]
    centre_y = torch.randint(height, (draws.count,), generator=draws.generator)
    centre_x = torch.randint(width, (draws.count,), generator=draws.generator)
    return framing.cutout(images, min(height, width) // 2, draws.taken(centre_y), draws.taken(centre_x))


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(image / 255 - mean) / std per channel, as float32 in the memory format of the images."""
    # Constants take the layout of one image, so that the inner loop runs along memory in either format.
    scale, shift = torch.empty_like(images[:1], dtype=torch.float32), torch.empty_like(images[:1], dtype=torch.float32)
    factor, offset = normalisation(tuple(mean), tuple(std), images.device)
    return (images * scale.copy_(factor)).sub_(shift.copy_(offset))


@lru_cache(maxsize=8)
def normalisation(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """1 / (255 std) and mean / std, (1, C, 1, 1) each, moved to a device once and not with every batch."""
    centre, width = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1)
    return (1 / (255 * width)).to(device), (centre / width).to(device)
