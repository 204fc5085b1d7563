"""Which part of an image is seen: crops, flips and holes, at places given per image.

Every function maps uint8 images (N, C, H, W) to images of the same shape; places are vectors on the CPU.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .pixels import on_device_of, put_rows, to_bytes

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


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen images from left to right."""
    places, flipped = chosen.nonzero()[:, 0], images.clone()
    put_rows(flipped, places, images.index_select(0, on_device_of(places, images)).flip(3))
    return flipped


def cutout(images: Tensor, side: int, centre_y: Tensor, centre_x: Tensor) -> Tensor:
    """Black out one square per image, from centre - side/2 to just before centre + side/2, clipped at the border."""

    def kept(length: int, centre: Tensor) -> Tensor:
        start = on_device_of(centre, images)[:, None] - side // 2
        places = torch.arange(length, device=images.device)
        return (places < start) | (places >= start + side)

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
    place = torch.rand(count, 2, generator=generator)
    widths, heights = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)
    # A whole image whose own aspect is allowed is the fallback as it is; otherwise the longer side is cut.
    middle = (min(height, round(width / ratio[0])), min(width, round(height * ratio[1])))
    sizes = torch.stack([heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]], dim=1)
    found = fits.any(1, keepdim=True)
    sizes = torch.where(found, sizes, torch.tensor(middle))
    room = torch.tensor([height, width]) - sizes
    corners = torch.where(found, (place * (room + 1)).long(), room // 2)
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

    def pick(values: Tensor, dim: int, places: Tensor) -> Tensor:
        shape = [count, 1, 1, 1]
        shape[dim] = places.shape[1]
        return values.gather(dim, places.view(shape).expand(values.shape))

    wide = torch.lerp(pick(images, 3, columns).float(), pick(images, 3, next_columns).float(), across)
    full = torch.lerp(pick(wide, 2, rows), pick(wide, 2, next_rows), down)
    return to_bytes(full.round_())


def _taps(length: int, start: Tensor, extent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every output place the two source places beside it and the weight of the second, each (N, length)."""
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
    """How much each of ``length`` source places counts in each place of the result, (N, result, length)."""
    scale = (extent / result)[:, None, None]
    centres = start[:, None, None] + (torch.arange(result, device=start.device)[:, None] + 0.5) * scale
    places = torch.arange(length, device=start.device)
    weights = (1 - (places + 0.5 - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    weights *= (places >= start[:, None, None]) & (places < (start + extent)[:, None, None])
    return weights / weights.sum(2, keepdim=True)
