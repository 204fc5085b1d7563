"""Named augmentation pipelines: crops, flip, brightness, cutout, normalisation.

Every function maps uint8 images (N, C, H, W) to images of the same shape; places are vectors on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry import Registry
from ...seeding import BatchShard, Draws
from . import operations
from .operations import Toned, in_pieces, is_large, on_device_of, put_rows, to_bytes
from .policies import POLICIES, AutoAugment, RandAugment

if TYPE_CHECKING:
    from ..dataset import DataSpec

ATTEMPTS = 10
"""Boxes tried per image before the resized crop falls back to the middle of the image."""


def pad_crop(images: Tensor, padding: int, top: Tensor, left: Tensor) -> Tensor:
    """Pad with zeros on each side, then cut the original size out, its corner at (top, left) of the padded image."""
    count, channels, height, width = images.shape
    if not count:
        return images.clone()
    device = images.device
    padded = F.pad(images, (padding, padding, padding, padding)).contiguous()
    # Rows of the result are runs of bytes in the padded batch: copied as such, several times faster than a gather.
    planes = torch.arange(count * channels, device=device).view(count, channels, 1) * padded.shape[2]
    rows = planes + on_device_of(top, images).view(-1, 1, 1) + torch.arange(height, device=device)
    starts = rows * padded.shape[3] + on_device_of(left, images).view(-1, 1, 1)
    return padded.flatten().unfold(0, width, 1).index_select(0, starts.flatten()).view(images.shape)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images where the mask is true from left to right."""
    indices, flipped = mask.nonzero()[:, 0], images.clone()
    put_rows(flipped, indices, images.index_select(0, on_device_of(indices, images)).flip(3))
    return flipped


def cutout(images: Tensor, side: int, centre_y: Tensor, centre_x: Tensor) -> Tensor:
    """Black out one square per image, from centre - side/2 to just before centre + side/2, clipped at the border."""

    def kept(length: int, centre: Tensor) -> Tensor:
        start = on_device_of(centre, images)[:, None] - side // 2
        positions = torch.arange(length, device=images.device)
        return (positions < start) | (positions >= start + side)

    rows, columns = kept(images.shape[2], centre_y), kept(images.shape[3], centre_x)
    return images * (rows[:, None, :, None] | columns[:, None, None, :])


def draw_boxes(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Boxes (N, 4) of top, left, height, width: a uniform share of the area, a log-uniform aspect ratio.

    Of ten tries per image the first that fits is taken; if none does, the largest allowed box in the middle.
    """
    area = torch.empty(count, ATTEMPTS).uniform_(*scale, generator=generator) * (height * width)
    aspect = torch.empty(count, ATTEMPTS).uniform_(math.log(ratio[0]), math.log(ratio[1]), generator=generator).exp()
    offsets = torch.rand(count, 2, generator=generator)
    widths, heights = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)
    # A whole image whose own aspect is allowed is the fallback as it is; otherwise the longer side is cut.
    middle = (min(height, round(width / ratio[0])), min(width, round(height * ratio[1])))
    sizes = torch.stack([heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]], dim=1)
    has_fit = fits.any(1, keepdim=True)
    sizes = torch.where(has_fit, sizes, torch.tensor(middle))
    room = torch.tensor([height, width]) - sizes
    corners = torch.where(has_fit, (offsets * (room + 1)).long(), room // 2)
    return torch.cat([corners, sizes], dim=1)


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Enlarge the box (top, left, height, width) of each image to the full size, bilinearly, pixel centres aligned.

    A box is never larger than the image, so no smoothing against aliasing is needed; pixels outside the box are
    not looked at.
    """
    count, _, height, width = images.shape
    top, left, box_height, box_width = on_device_of(boxes, images).unbind(1)
    columns, next_columns, across = _taps(width, left, box_width)
    rows, next_rows, down = _taps(height, top, box_height)
    across, down = across.view(count, 1, 1, width), down.view(count, 1, height, 1)

    def pick(values: Tensor, dim: int, positions: Tensor) -> Tensor:
        shape = [count, 1, 1, 1]
        shape[dim] = positions.shape[1]
        return values.gather(dim, positions.view(shape).expand(values.shape))

    wide = torch.lerp(pick(images, 3, columns).float(), pick(images, 3, next_columns).float(), across)
    full = torch.lerp(pick(wide, 2, rows), pick(wide, 2, next_rows), down)
    return to_bytes(full.round_())


def _taps(length: int, start: Tensor, extent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every output position the two nearest source positions and the weight of the second, each (N, length)."""
    centres = torch.arange(length, device=start.device) + 0.5
    source = (centres * (extent / length)[:, None] - 0.5).clamp_(min=0)
    lower = torch.minimum(source.long(), extent[:, None] - 1)
    upper = torch.minimum(lower + 1, extent[:, None] - 1)
    return start[:, None] + lower, start[:, None] + upper, source - lower


def padded_resized_crop(images: Tensor, padding: int, boxes: Tensor) -> Tensor:
    """Pad with zeros on each side, then scale the box (top, left, height, width) of each image to the original size.

    Bilinear, and where a box is larger than the result the filter widens with it, as Pillow's does. Pillow rounds
    once more, between columns and rows.
    """
    height, width = images.shape[2:]
    padded = F.pad(images, (padding, padding, padding, padding)).float()
    top, left, box_height, box_width = on_device_of(boxes, images).unbind(1)
    across = _weights(padded.shape[3], width, left, box_width)
    down = _weights(padded.shape[2], height, top, box_height)
    return to_bytes((down[:, None] @ padded @ across[:, None].mT).round_())


def _weights(length: int, result: int, start: Tensor, extent: Tensor) -> Tensor:
    """The weight of each of ``length`` source positions in each output position, (N, result, length)."""
    scale = (extent / result)[:, None, None]
    centres = start[:, None, None] + (torch.arange(result, device=start.device)[:, None] + 0.5) * scale
    positions = torch.arange(length, device=start.device)
    weights = (1 - (positions + 0.5 - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    weights *= (positions >= start[:, None, None]) & (positions < (start + extent)[:, None, None])
    return weights / weights.sum(2, keepdim=True)


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
        """A plain generator draws for exactly these images."""
        if isinstance(draws, torch.Generator):
            draws = Draws(draws, BatchShard(len(images)))
        # Inference mode makes the many small kernels cheaper; the copy is an ordinary tensor again.
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


@AUGMENTS.register("randaugment")
def rand_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """As crop, then RandAugment where the images allow policies. DyTox's own augmentation."""
    crop = crop_augment(spec, in_memory)
    return crop if spec.policy is None else crop.then(RandAugment(spec.mean))


@dataclass(frozen=True)
class RandomShift:
    """Zero padding, then a crop of the original size at a uniform place."""

    padding: int

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        corners = torch.randint(2 * self.padding + 1, (2, draws.count), generator=draws.generator)
        top, left = draws.taken(corners, dim=1)
        return pad_crop(images, self.padding, top, left)


@dataclass(frozen=True)
class PaddedResizedCrop:
    """Zero padding, then a random box of the padded image, scaled to the original size."""

    padding: int

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = (side + 2 * self.padding for side in images.shape[2:])
        return padded_resized_crop(images, self.padding, _boxes(height, width, draws))


def random_resized_crop(images: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[2:]
    return resized_crop(images, _boxes(height, width, draws))


def _boxes(height: int, width: int, draws: Draws) -> Tensor:
    return draws.taken(draw_boxes(draws.count, height, width, draws.generator))


def random_flip(images: Tensor, draws: Draws) -> Tensor:
    return flip(images, draws.taken(torch.rand(draws.count, generator=draws.generator)) < 0.5)


def random_brightness(images: Tensor, draws: Draws) -> Tensor:
    return in_pieces(operations.brightness, images, _factors(draws))


def brightened(images: Tensor, draws: Draws) -> Toned:
    """The same; deferred for large images, so that it is merged with the look-up of another operation."""
    factors = _factors(draws)
    if not is_large(images):
        return Toned(in_pieces(operations.brightness, images, factors), writable=True)
    toned, every = Toned(images), torch.arange(len(images))
    toned.tone(every, operations.brightness_table(toned.shown(every), factors))
    return toned


def _factors(draws: Draws) -> Tensor:
    factors = torch.empty(draws.count, dtype=torch.float64)
    return draws.taken(factors.uniform_(1 - JITTER, 1 + JITTER, generator=draws.generator))


def random_cutout(images: Tensor, draws: Draws) -> Tensor:
    """One square hole of half the image's side (16 of 32 pixels), its centre uniform over the image."""
    height, width = images.shape[2:]
    centre_y = torch.randint(height, (draws.count,), generator=draws.generator)
    centre_x = torch.randint(width, (draws.count,), generator=draws.generator)
    return cutout(images, min(height, width) // 2, draws.taken(centre_y), draws.taken(centre_x))


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
