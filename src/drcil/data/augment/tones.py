"""Pointwise operations, put off: what becomes of each level is kept as tables until pixels are needed.

Brightness and the two turns of a policy are often pointwise all three. Their tables are 256 entries each, so that one
made of all is cheap, and every pixel is looked up once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .pixels import LEVELS, on_device_of, put_rows

_LARGE = 96 * 96
"""From so many pixels on, a CPU takes an image plane by plane, which is less work for each pixel."""


class Toned:
    """A batch of images, each of its channels shown through a table of its own."""

    def __init__(self, pixels: Tensor, own: bool = False) -> None:
        """``pixels``: uint8 (N, C, H, W), which are left as they are, unless they are the batch's ``own``."""
        self._pixels, self._is_own = pixels, own
        self._tables = self.levels.to(torch.uint8).repeat(*pixels.shape[:2], 1)
        self._pending = torch.zeros(len(pixels), dtype=torch.bool)
        """Which images are shown through another table than the identity; on the CPU."""

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def shape(self) -> torch.Size:
        return self._pixels.shape

    @property
    def levels(self) -> Tensor:
        """0 to 255, beside the images."""
        return torch.arange(LEVELS, dtype=torch.int32, device=self._pixels.device)

    def shown(self, chosen: Tensor) -> Shown:
        """The chosen images (places in the batch, on the CPU), to look at."""
        return Shown(self, chosen)

    def tone(self, chosen: Tensor, tables: Tensor) -> None:
        """Replace the levels that the chosen images show by their entries in the tables (n, C or 1, 256)."""
        at = on_device_of(chosen, self._pixels)
        tables = tables.expand(-1, self.shape[1], -1)
        if self._pending[chosen].any():
            tables = tables.gather(2, self._tables.index_select(0, at).long())
        put_rows(self._tables, chosen, tables)
        self._pending[chosen] = True

    def pixels(self, chosen: Tensor) -> Tensor:
        """The chosen images as they are shown; a copy."""
        at = on_device_of(chosen, self._pixels)
        images, pending = self._pixels.index_select(0, at), self._pending[chosen]
        if pending.all():
            return look_up(images, self._tables.index_select(0, at))
        if pending.any():
            places = on_device_of(pending.nonzero()[:, 0], self._pixels)
            looked_up = look_up(images.index_select(0, places), self._tables.index_select(0, at[places]))
            put_rows(images, pending.nonzero()[:, 0], looked_up)
        return images

    def put(self, chosen: Tensor, images: Tensor) -> None:
        """Show these images in the place of the chosen ones."""
        if not self._is_own:
            self._pixels, self._is_own = self._pixels.clone(), True
        put_rows(self._pixels, chosen, images)
        if self._pending[chosen].any():
            identity = self.levels.to(torch.uint8).expand(len(chosen), self.shape[1], -1)
            put_rows(self._tables, chosen, identity)
            self._pending[chosen] = False

    def counts(self, chosen: Tensor) -> Tensor:
        """How often each channel of the chosen images shows each level, (n, C, 256)."""
        at = on_device_of(chosen, self._pixels)
        counts = level_counts(self._pixels.index_select(0, at))
        if not self._pending[chosen].any():
            return counts
        return torch.zeros_like(counts).scatter_add_(2, self._tables.index_select(0, at).long(), counts)

    def settled(self) -> Tensor:
        """All images as they are shown."""
        if self._pending.all():
            return look_up(self._pixels, self._tables)
        pending = self._pending.nonzero()[:, 0]
        if len(pending):
            self.put(pending, self.pixels(pending))
        return self._pixels


class Shown:
    """Some images of a batch, as they are shown at the moment."""

    def __init__(self, batch: Toned, chosen: Tensor) -> None:
        self._batch, self._chosen = batch, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def levels(self) -> Tensor:
        return self._batch.levels

    def pixels(self) -> Tensor:
        return self._batch.pixels(self._chosen)

    def counts(self) -> Tensor:
        return self._batch.counts(self._chosen)


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace every pixel by its entry in the table (N, C or 1, 256) of its image and channel."""
    entries = tables.expand(-1, images.shape[1], -1)
    if not (is_large(images) and images.device.type == "cpu"):
        return entries.gather(2, images.flatten(2).long()).view(images.shape)
    planes = images.flatten(2).flatten(0, 1).numpy()
    result = torch.empty(planes.shape, dtype=torch.uint8)
    for plane, table, place in zip(planes, entries.reshape(-1, LEVELS).numpy(), result, strict=True):
        # Torch would widen every pixel to eight bytes first.
        place.copy_(torch.frombuffer(bytearray(plane).translate(table.tobytes()), dtype=torch.uint8))
    return result.view(images.shape)


def level_counts(images: Tensor) -> Tensor:
    """How often each channel has each level, (N, C, 256)."""
    if is_large(images) and images.device.type == "cpu":
        found = torch.empty(*images.shape[:2], LEVELS, dtype=torch.int64)
        for plane, place in zip(images.flatten(2).flatten(0, 1), found.flatten(0, 1), strict=True):
            place.copy_(torch.bincount(plane, minlength=LEVELS))
        return found
    bins = images.shape[0] * images.shape[1] * LEVELS
    first = torch.arange(0, bins, LEVELS, dtype=torch.int32, device=images.device)
    places = (images.flatten(2).flatten(0, 1) + first[:, None]).flatten()
    if images.device.type == "cpu":
        return torch.bincount(places, minlength=bins).view(*images.shape[:2], LEVELS)
    # There to count is to wait for the device.
    counts = torch.zeros(bins, dtype=torch.int64, device=images.device)
    one = torch.ones(1, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(0, places.long(), one.expand(len(places))).view(*images.shape[:2], LEVELS)


def is_large(images: Tensor) -> bool:
    """Whether to look up every pixel costs much more than to make one table of two."""
    return images.shape[2] * images.shape[3] >= _LARGE
