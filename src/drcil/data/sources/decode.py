"""From a picture, whatever its kind, to the square of pixels a net is shown.

The *test view* scales the short side and takes the centre; the *training view* is a random crop of the original,
scaled (the random resized crop of the ImageNet protocol). Both use an antialiased bilinear filter.

Pictures become 8-bit RGB (or grey, where one channel is asked for): transparent ones are laid on white, 16-bit
ones keep their upper eight bits' worth, floats are in [0, 1] or in [0, 255], CMYK and palettes are converted, and the
EXIF orientation is honoured.
"""

from __future__ import annotations

import io
import math
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from .jpeg import Jpeg

Picture = Image.Image | Jpeg
"""A picture that need not be decoded yet."""
Mode = Literal["RGB", "L"]
Pixels = npt.NDArray[np.uint8]

STANDARD = 224
"""The image size of nets for photographs."""
SMALL = 64
"""Pictures up to this size are kept in memory where possible, and shown whole."""

SCALED_FROM = 4
"""A JPEG is decoded at a smaller scale where what is shown of it shrinks at least so many times."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNS = {
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
"""The same for arrays: whether rows become columns, and then rows, and columns, are in reverse."""
_SIDEWAYS = (5, 6, 7, 8)
_ON_THE_WAY = {"La": "LA", "LAB": "RGB"}
"""Modes that Pillow converts only by way of another."""


class Box(NamedTuple):
    """A rectangle of whole pixels."""

    left: int
    top: int
    width: int
    height: int


def short_side(size: int) -> int:
    """What the short side is scaled to before the centre of ``size`` is taken: 256 for 224, and in proportion.

    At small sizes it is the size itself: there the whole picture counts, and one of that size is left as it is.
    """
    return size if size <= SMALL else round(size * 256 / 224)


def natural_size(picture: Image.Image) -> int:
    """The size to use for pictures like this one unless another is asked for: its own if small, else 224."""
    return min(picture.size) if min(picture.size) <= SMALL else STANDARD


def centre_view(picture: Picture, size: int, resize: int, mode: Mode = "RGB") -> Image.Image:
    """The short side scaled to ``resize``, then the central square of ``size``."""
    upright = _upright(picture, _orientation(picture), mode, min(picture.size) / resize)
    short = min(upright.size)
    # Only the square is computed, which keeps extremely long pictures as cheap as others.
    edges = []
    for length in upright.size:
        scaled = int(resize * length / short)
        start = round((scaled - size) / 2)
        edges.append((start * length / scaled, (start + size) * length / scaled))
    (left, right), (top, bottom) = edges
    return upright.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))


def random_view(picture: Picture, size: int, random: Random, mode: Mode = "RGB") -> Pixels:
    """A random crop of the upright picture, scaled to ``size``, as (size, size, channels)."""
    orientation = _orientation(picture)
    width, height = reversed(picture.size) if orientation in _SIDEWAYS else picture.size
    box = random_box(width, height, random)
    pixels = _upright_pixels(picture, orientation, mode, min(box.width, box.height) / size)
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    left, top = round(box.left * across), round(box.top * down)
    right, bottom = round((box.left + box.width) * across), round((box.top + box.height) * down)
    return _resized(pixels[top:bottom, left:right], size)


def whole(picture: Picture, mode: Mode = "RGB") -> Pixels:
    """The upright picture at its full size, as (height, width, channels)."""
    return np.ascontiguousarray(_upright_pixels(picture, _orientation(picture), mode))


def random_crop(pixels: Pixels, size: int, random: Random) -> Pixels:
    """What `random_view` shows of a picture that is decoded at its full size."""
    height, width, _ = pixels.shape
    box = random_box(width, height, random)
    return _resized(pixels[box.top : box.top + box.height, box.left : box.left + box.width], size)


def random_box(width: int, height: int, random: Random) -> Box:
    """Area 8..100 % of the picture, aspect ratio 3/4..4/3 (log-uniform), anywhere inside.

    A draw that does not fit is drawn again; after ten, the largest central box within the ratios is taken.
    """
    least, most = 3 / 4, 4 / 3
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(least), math.log(most)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Box(random.randrange(width - w + 1), random.randrange(height - h + 1), w, h)
    w, h = min(width, round(height * most)), min(height, round(width / least))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def flatten(picture: Image.Image, mode: Mode = "RGB") -> Image.Image:
    """The picture as 8-bit RGB or grey, without transparency; a ``ValueError`` if its values cannot be understood."""
    if picture.mode in _ON_THE_WAY:
        picture = picture.convert(_ON_THE_WAY[picture.mode])
    if picture.mode == "F" or picture.mode.startswith("I"):
        picture = Image.fromarray(_eight_bits(np.asarray(picture), picture.mode))
    elif picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture if picture.mode == mode else picture.convert(mode)


def _eight_bits(values: npt.NDArray[Any], mode: str) -> Pixels:
    """Grey values of more than 8 bits: of 16 bits in proportion, floats and 32 bits by the range that they keep to."""
    least, most = values.min().item(), values.max().item()
    ranges = (1, 255) if mode == "F" else (255, 65535) if mode == "I" else (65535,)
    white = next((end for end in ranges if most <= end), None)
    if white is None or not least >= 0:  # Neither holds for NaN.
        expected = " or ".join(f"0 to {end}" for end in ranges)
        raise ValueError(f"its values range from {least:g} to {most:g}, and not within {expected}")
    scaled: Pixels = np.rint(values * (255 / white)).astype(np.uint8)
    return scaled


def _upright(picture: Picture, orientation: int, mode: Mode, shrinkage: float = 1) -> Image.Image:
    """Decoded and turned; one that will shrink so many times perhaps smaller than it is."""
    if isinstance(picture, Jpeg):
        pixels = _upright_pixels(picture, orientation, mode, shrinkage)
        return Image.fromarray(pixels if mode == "RGB" else pixels[..., 0])
    divisor = _divisor(picture, shrinkage)
    if divisor > 1:
        picture.draft(None, (picture.width // divisor, picture.height // divisor))
    return flatten(picture.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else picture, mode)


def _upright_pixels(picture: Picture, orientation: int, mode: Mode, shrinkage: float = 1) -> Pixels:
    """The same as (height, width, channels)."""
    if not isinstance(picture, Jpeg):
        return _pixels(_upright(picture, orientation, mode, shrinkage))
    stored = picture.decoded(3 if mode == "RGB" else 1, _divisor(picture, shrinkage))
    if stored is None:
        with Image.open(io.BytesIO(picture.content), formats=("JPEG",)) as opened:
            return _pixels(_upright(opened, orientation, mode, shrinkage))
    sideways, upside_down, mirrored = _TURNS.get(orientation, (False, False, False))
    turned = stored.swapaxes(0, 1) if sideways else stored
    return turned[:: -1 if upside_down else 1, :: -1 if mirrored else 1]


def _divisor(picture: Picture, shrinkage: float) -> int:
    """What a JPEG that will shrink a lot is divided by while it is decoded, still at twice the detail needed."""
    if shrinkage < SCALED_FROM:
        return 1
    times = min(length // math.ceil(2 * length / shrinkage) for length in picture.size)
    return max((divisor for divisor in (2, 4, 8) if divisor <= times), default=1)


def _orientation(picture: Picture) -> int:
    # Asking costs more than decoding a small JPEG does, and most have nothing to say.
    if isinstance(picture, Jpeg):
        if not picture.has_metadata():
            return 1
        with Image.open(io.BytesIO(picture.content), formats=("JPEG",)) as opened:
            return _orientation(opened)
    if picture.format == "JPEG" and not picture.info.keys() & {"exif", "xmp"}:
        return 1
    given = picture.getexif().get(ExifTags.Base.Orientation)
    return given if isinstance(given, int) else 1


def _pixels(picture: Image.Image) -> Pixels:
    # Into memory that can be written to, without which torch will not take it.
    flat = np.frombuffer(bytearray(picture.tobytes()), dtype=np.uint8)
    return flat.reshape(picture.height, picture.width, -1)


def _resized(pixels: Pixels, size: int) -> Pixels:
    """What Pillow's filter makes of it, give or take one level; torch has the same filter several times faster."""
    if pixels.shape[:2] == (size, size):
        return pixels
    # Here, so that a process that only decodes starts quickly.
    import torch
    from torch.nn import functional

    images = torch.from_numpy(np.ascontiguousarray(pixels))[None].permute(0, 3, 1, 2)
    resized: Pixels = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)[0].numpy()
    return resized.transpose(1, 2, 0)
