"""Colour and geometric operations on uint8 batches, equal to Pillow's.

Brightness and the two turns of a policy are often pointwise all three. Their tables are 256 entries each, so that one
made of all is cheap, and every pixel is looked up once.

Most are *pointwise*: what becomes of a pixel depends on its value alone, once the image is known. They are written
as tables, 256 entries per image and channel, so that images with different operations, and one operation after the
other, share one look-up. Values are one number per image, a float64 vector on the CPU.

Translations and rotations are affine maps per image, so that images with different ones share one fetch; the maps
sample the same places as Pillow's ``Image.transform``, whose fixed-point arithmetic they follow to the bit. Values
are one number per image, a float64 vector on the CPU.

All five are affine maps per image, so that images with different ones share one warp; it samples the same places as
Pillow's ``Image.transform`` with its bicubic filter. Values are one number per image, a float64 vector on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 256
_PIECE = 1 << 19
"""Bytes of images, with intermediate results, that fit into a CPU cache between operations."""


def on_device_of(values: Tensor, images: Tensor) -> Tensor:
    """The values on the device of the images, copied without synchronising with the GPU."""
    # CUDA copies unpinned memory immediately; other devices might read it after it is freed.
    return values.to(images.device, non_blocking=images.is_cuda)


def in_pieces(operation: Callable[[Tensor, Tensor], Tensor], images: Tensor, values: Tensor) -> Tensor:
    """Apply the operation to images and their values (…, N); on a CPU in pieces."""
    length = max(1, _PIECE // max(1, math.prod(images.shape[1:])))
    if images.device.type != "cpu" or len(images) <= length:
        return operation(images, values)
    return torch.cat(list(map(operation, torch.split(images, length), torch.split(values, length, dim=-1))))


def put_rows(target: Tensor, indices: Tensor, rows: Tensor) -> None:
    """Overwrite the rows of ``target`` at these indices (on the CPU)."""
    if target.device.type == "cpu":
        # Torch would copy element by element.
        target.numpy()[indices.numpy()] = rows.numpy()
    else:
        target.index_copy_(0, on_device_of(indices, target), rows)


def to_bytes(levels: Tensor) -> Tensor:
    """Clip float levels to 0..255, in place, and truncate them to integers."""
    # Through int16, because the direct conversion of floats to bytes is not vectorised on CPUs.
    return levels.clamp_(0, LEVELS - 1).to(torch.int16).to(torch.uint8)


def pick(images: Tensor, positions: Tensor) -> Tensor:
    """The pixels (N, C, P) at these positions (N, ...) of the flattened images; the same for all channels."""
    # Along one flat axis, because a gather along short rows is several times slower on CPUs.
    return images.flatten(2).gather(2, positions.long().flatten(1)[:, None].expand(-1, images.shape[1], -1))


def cubic(values: Sequence[Tensor], shift: Tensor) -> Tensor:
    """Cubic interpolation, ``shift`` from the second to the third of four values; a = -1 as in Pillow's transforms."""
    before, current, after, beyond = values
    cube = current - before + beyond - after
    return current + shift * (after - before + shift * (before - current - cube + shift * cube))


_LARGE = 96 * 96
"""From this number of pixels on, a CPU processes an image plane by plane, which is faster per pixel."""


class Toned:
    """A batch of images with a lookup table for each channel of each image."""

    def __init__(self, pixels: Tensor, writable: bool = False) -> None:
        """``pixels``: uint8 (N, C, H, W), copied before the first change unless ``writable``."""
        self._pixels, self._is_writable = pixels, writable
        self._tables = self.levels.to(torch.uint8).repeat(*pixels.shape[:2], 1)
        self._pending = torch.zeros(len(pixels), dtype=torch.bool)
        """Which images have a table other than the identity; on the CPU."""

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def shape(self) -> torch.Size:
        return self._pixels.shape

    @property
    def levels(self) -> Tensor:
        """0 to 255, on the device of the images."""
        return torch.arange(LEVELS, dtype=torch.int32, device=self._pixels.device)

    def shown(self, indices: Tensor) -> Shown:
        """A read-only view of the images at these indices (on the CPU)."""
        return Shown(self, indices)

    def tone(self, indices: Tensor, tables: Tensor) -> None:
        """Map the levels of the images at these indices through the tables (n, C or 1, 256)."""
        device_indices = on_device_of(indices, self._pixels)
        tables = tables.expand(-1, self.shape[1], -1)
        if self._pending[indices].any():
            tables = tables.gather(2, self._tables.index_select(0, device_indices).long())
        put_rows(self._tables, indices, tables)
        self._pending[indices] = True

    def pixels(self, indices: Tensor) -> Tensor:
        """A copy of the images at these indices, with their tables applied."""
        device_indices = on_device_of(indices, self._pixels)
        images, pending = self._pixels.index_select(0, device_indices), self._pending[indices]
        if pending.all():
            return look_up(images, self._tables.index_select(0, device_indices))
        if pending.any():
            positions = on_device_of(pending.nonzero()[:, 0], self._pixels)
            looked_up = look_up(
                images.index_select(0, positions), self._tables.index_select(0, device_indices[positions])
            )
            put_rows(images, pending.nonzero()[:, 0], looked_up)
        return images

    def put(self, indices: Tensor, images: Tensor) -> None:
        """Replace the images at these indices."""
        if not self._is_writable:
            self._pixels, self._is_writable = self._pixels.clone(), True
        put_rows(self._pixels, indices, images)
        if self._pending[indices].any():
            identity = self.levels.to(torch.uint8).expand(len(indices), self.shape[1], -1)
            put_rows(self._tables, indices, identity)
            self._pending[indices] = False

    def counts(self, indices: Tensor) -> Tensor:
        """The histogram of each channel of the images at these indices, (n, C, 256)."""
        device_indices = on_device_of(indices, self._pixels)
        counts = level_counts(self._pixels.index_select(0, device_indices))
        if not self._pending[indices].any():
            return counts
        return torch.zeros_like(counts).scatter_add_(2, self._tables.index_select(0, device_indices).long(), counts)

    def settled(self) -> Tensor:
        """All images with their tables applied."""
        if self._pending.all():
            return look_up(self._pixels, self._tables)
        pending = self._pending.nonzero()[:, 0]
        if len(pending):
            self.put(pending, self.pixels(pending))
        return self._pixels


class Shown:
    """Some images of a batch, with their current tables applied."""

    def __init__(self, batch: Toned, indices: Tensor) -> None:
        self._batch, self._indices = batch, indices

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def levels(self) -> Tensor:
        return self._batch.levels

    def pixels(self) -> Tensor:
        return self._batch.pixels(self._indices)

    def counts(self) -> Tensor:
        return self._batch.counts(self._indices)


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Replace every pixel by its entry in the table (N, C or 1, 256) of its image and channel."""
    entries = tables.expand(-1, images.shape[1], -1)
    if not (is_large(images) and images.device.type == "cpu"):
        return entries.gather(2, images.flatten(2).long()).view(images.shape)
    planes = images.flatten(2).flatten(0, 1).numpy()
    result = torch.empty(planes.shape, dtype=torch.uint8)
    for plane, table, output in zip(planes, entries.reshape(-1, LEVELS).numpy(), result, strict=True):
        # Torch would widen every pixel to eight bytes first.
        output.copy_(torch.frombuffer(bytearray(plane).translate(table.tobytes()), dtype=torch.uint8))
    return result.view(images.shape)


def level_counts(images: Tensor) -> Tensor:
    """How often each channel has each level, (N, C, 256)."""
    if is_large(images) and images.device.type == "cpu":
        counts_per_plane = torch.empty(*images.shape[:2], LEVELS, dtype=torch.int64)
        for plane, row in zip(images.flatten(2).flatten(0, 1), counts_per_plane.flatten(0, 1), strict=True):
            row.copy_(torch.bincount(plane, minlength=LEVELS))
        return counts_per_plane
    bins = images.shape[0] * images.shape[1] * LEVELS
    first = torch.arange(0, bins, LEVELS, dtype=torch.int32, device=images.device)
    bin_of = (images.flatten(2).flatten(0, 1) + first[:, None]).flatten()
    if images.device.type == "cpu":
        return torch.bincount(bin_of, minlength=bins).view(*images.shape[:2], LEVELS)
    # Bincount would synchronise with the device.
    counts = torch.zeros(bins, dtype=torch.int64, device=images.device)
    increment = torch.ones(1, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(0, bin_of.long(), increment.expand(len(bin_of))).view(*images.shape[:2], LEVELS)


def is_large(images: Tensor) -> bool:
    """Whether looking up every pixel costs much more than composing two tables."""
    return images.shape[2] * images.shape[3] >= _LARGE


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


def solarize_table(images: Shown, thresholds: Tensor) -> Tensor:
    """Invert the levels from the threshold upwards; all of them at 0."""
    levels = images.levels
    below_threshold = levels < on_device_of(thresholds.float(), levels).view(-1, 1, 1)
    return torch.where(below_threshold, levels, LEVELS - 1 - levels).to(torch.uint8)


def solarize_add_table(images: Shown, added: Tensor) -> Tensor:
    """Add this much to the levels of the darker half, up to white."""
    levels = images.levels
    brighter = (levels + on_device_of(added.int(), levels).view(-1, 1, 1)).clamp_(max=LEVELS - 1)
    return torch.where(levels < LEVELS // 2, brighter, levels).to(torch.uint8)


def posterize_table(images: Shown, bits: Tensor) -> Tensor:
    """Keep the highest bits of every level."""
    levels = images.levels
    dropped = on_device_of((2 ** (8 - bits)).int(), levels).view(-1, 1, 1)
    return (levels & -dropped).to(torch.uint8)


def brightness_table(images: Shown, factors: Tensor) -> Tensor:
    """Blend with black."""
    return brightness(images.levels.expand(len(images), 1, -1), factors)


def contrast_table(images: Shown, factors: Tensor) -> Tensor:
    """Blend with the image's mean grey, rounded."""
    luma = grey(images.pixels()).flatten(1)
    pixels = luma.shape[1]
    mean = (2 * luma.sum(1) + pixels) // (2 * pixels)
    return blend(mean.float().view(-1, 1, 1), images.levels.expand(len(images), 1, -1), factors)


def autocontrast_table(images: Shown, _: Tensor) -> Tensor:
    """Stretch each channel so that its darkest level becomes 0 and its brightest 255.

    In whole numbers; Pillow's floating point falls one level short where the quotient is whole.
    """
    levels, pixels = images.levels, images.pixels().flatten(2)
    low, high = pixels.amin(2, keepdim=True).int(), pixels.amax(2, keepdim=True).int()
    stretched = ((levels - low) * (LEVELS - 1)) // (high - low).clamp(min=1)
    return torch.where(high > low, stretched.clamp_(0, LEVELS - 1), levels).to(torch.uint8)


def equalize_table(images: Shown, _: Tensor) -> Tensor:
    """Spread the levels of each channel by its cumulative histogram; left alone where the step would be nothing."""
    counts = images.counts()
    brightest = counts.gather(2, ((counts > 0) * images.levels).amax(2, keepdim=True).long())
    through = counts.cumsum(2)
    step = (through[..., -1:] - brightest) // (LEVELS - 1)
    spread = (step // 2 + through - counts) // step.clamp(min=1)
    return torch.where(step > 0, spread.clamp_(max=LEVELS - 1), images.levels).to(torch.uint8)


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


GREY = 128
"""The fill value outside the source image."""
ONE = 1 << 16
"""One pixel in Pillow's 16.16 fixed-point coordinates."""


def rotate_map(height: int, width: int, degrees: Tensor) -> Tensor:
    """Turn the picture counterclockwise about its centre."""
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    # The centre of the first pixel is half a pixel from the corner.
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
    # Pillow does not use fixed point without rotation or shear, so the shift is rounded first.
    ones, zeros = torch.ones_like(pixels), torch.zeros_like(pixels)
    matrix = [ones, zeros, zeros, zeros, ones, zeros]
    matrix[coefficient] = (pixels + 0.5).floor()
    return _fixed(torch.stack(matrix))


def _fixed(matrix: Tensor) -> Tensor:
    return (matrix * ONE + 0.5).floor().to(torch.int32)


AFFINE: Mapping[str, Callable[[int, int, Tensor], Tensor]] = MappingProxyType(
    {"translateX": translate_x_map, "translateY": translate_y_map, "rotate": rotate_map}
)
"""The operations that move pixels, by name: height, width and values to coefficients for ``warp_nearest``."""


def warp_nearest(images: Tensor, coefficients: Tensor) -> Tensor:
    """Fetch for each output pixel the source pixel it falls into, or grey.

    Coefficients are (6, N), fixed point: the source of row i, column j is x = a j + b i + c, y = d j + e i + f.
    """
    count, _, height, width = images.shape
    device = images.device
    a, b, c = on_device_of(coefficients, images).view(2, 3, count, 1, 1).unbind(1)
    i = torch.arange(height, dtype=torch.int32, device=device).view(-1, 1)
    j = torch.arange(width, dtype=torch.int32, device=device)
    x, y = (a * j + (b * i + c)) >> 16
    # A grey frame of one pixel represents everything outside.
    framed = F.pad(images, (1, 1, 1, 1), value=GREY)
    positions = (y.clamp_(-1, height) + 1) * (width + 2) + (x.clamp_(-1, width) + 1)
    return pick(framed, positions).view(images.shape)


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Sample row y at x + slope * y (pixel centres), bicubic with a = -1 as in Pillow's transforms.

    The offset is the same along a row, so the cubic runs through four shifted copies of it.
    """
    count, channels, height, width = images.shape
    if not count:
        return images.clone()
    device = images.device
    offset = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)
    whole_pixels = offset.floor()
    shift = on_device_of((offset - whole_pixels).float(), images)[:, None, :, None]
    # Edge pixels are repeated as far as the largest shift, and one and two pixels more for the taps.
    reach = int(whole_pixels.abs().max()) + 2
    ends = (images[..., :1], images[..., -1:])
    before, after = (end.expand(-1, -1, -1, reach) for end in ends)
    rows = torch.cat([before, images, after], dim=3)
    starts = torch.arange(count * channels * height, device=device).view(count, channels, height) * rows.shape[3]
    starts += on_device_of(whole_pixels.long(), images)[:, None] + (reach - 1)
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


def bicubic_rotate_map(height: int, width: int, degrees: Tensor) -> Tensor:
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


def bicubic_translate_x_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the width to the right, which moves the picture to the left."""
    return _unit_map(2, fractions * width)


def bicubic_translate_y_map(height: int, width: int, fractions: Tensor) -> Tensor:
    """Look this fraction of the height down, which moves the picture up."""
    return _unit_map(5, fractions * height)


def _unit_map(coefficient: int, values: Tensor) -> Tensor:
    """The identity except for one coefficient."""
    ones, zeros = torch.ones_like(values), torch.zeros_like(values)
    matrix = [ones, zeros, zeros, zeros, ones, zeros]
    matrix[coefficient] = values
    return torch.stack(matrix)


BICUBIC: Mapping[str, Callable[[int, int, Tensor], Tensor]] = MappingProxyType(
    {
        "shearX": shear_x_map,
        "shearY": shear_y_map,
        "translateX": bicubic_translate_x_map,
        "translateY": bicubic_translate_y_map,
        "rotate": bicubic_rotate_map,
    }
)
"""The operations by name: height, width and values to coefficients for ``warp_bicubic``."""


def warp_bicubic(images: Tensor, coefficients: Tensor, fill: Tensor) -> Tensor:
    """Sample each output pixel's source, x = a j + b i + c, y = d j + e i + f, in coordinates of pixel centres.

    Coefficients are (6, N), ``fill`` one level per channel. The cubic has a = -1, as in Pillow's transforms, and
    repeats the border; what lies outside the picture takes ``fill``.
    """
    count, channels, height, width = images.shape
    device = images.device
    a, b, c = coefficients.view(2, 3, count, 1, 1).unbind(1)
    i = torch.arange(height, dtype=torch.float64).view(-1, 1) + 0.5
    j = torch.arange(width, dtype=torch.float64) + 0.5
    # Positions in double precision and on the CPU: rounding may select another pixel.
    x, y = a * j + b * i + c
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = (on_device_of((centre - 0.5 - first).float(), images) for centre, first in ((x, left), (y, top)))
    columns, rows = (on_device_of(first.to(torch.int32), images) for first in (left, top))
    taps = torch.arange(-1, 3, dtype=torch.int32, device=device).view(-1, 1, 1)
    columns = (columns[:, None] + taps).clamp_(0, width - 1)
    lines = []
    for tap in range(-1, 3):
        positions = columns + (rows + tap).clamp_(0, height - 1)[:, None] * width
        line = pick(images, positions).float().view(count, channels, 4, height, width)
        lines.append(cubic(line.unbind(2), across[:, None]))
    sampled = cubic(lines, down[:, None])
    outside = on_device_of(fill.float(), images).view(-1, 1, 1)
    return to_bytes(torch.where(on_device_of(inside, images)[:, None], sampled, outside))
