"""Decodes, orients, crops, resizes and encodes images.

Pillow decodes what other decoders do not handle well: CMYK, damaged files, pictures so large that it warns.

The *test view* scales the short side and takes the centre; the *training view* is a random crop of the original,
scaled (the random resized crop of the ImageNet protocol). Both use an antialiased bilinear filter.

Pictures become 8-bit RGB (or grey, for one channel): transparent ones are composited on white, 16-bit
ones keep their upper eight bits' worth, floats are in [0, 1] or in [0, 255], CMYK and palettes are converted, and the
EXIF orientation is honoured.

File names are not trusted. Only regular files are opened, and only by decoders of image formats;
Pillow has others that run programs.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import UserError
from ..files import open_regular

if TYPE_CHECKING:
    from torch import Tensor

_BEGINNING = b"\xff\xd8\xff"
_METADATA = (b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0")
"""Prefixes of metadata that may contain the orientation."""
_SCAN, _BARE = 0xDA, (0x00, 0x01, *range(0xD0, 0xDA), 0xFF)
"""The marker of the segment that coded pixels follow, behind which there is no metadata; and what begins no segment."""
_COLOURS = ("YCbCr", "RGB", "Gray")


class Jpeg:
    """The content of a JPEG file whose header is sound, not decoded yet."""

    def __init__(self, content: bytes, width: int, height: int, grey: bool) -> None:
        self.content, self.size, self.grey = content, (width, height), grey

    def has_metadata(self) -> bool:
        """Whether the file may contain an orientation."""
        position = 2
        # Segment by segment: searching the whole content takes a tenth of the time of decoding.
        while self.content[position : position + 1] == b"\xff":
            marker = self.content[position + 1]
            if marker == _SCAN:
                return False
            if marker in _BARE or self.content.startswith(_METADATA, position + 4):
                return True
            position += 2 + int.from_bytes(self.content[position + 2 : position + 4])
        return True

    def decoded(self, channels: int, divisor: int = 1) -> npt.NDArray[np.uint8] | None:
        """Its pixels (height, width, channels) as they are stored, at 1/1, 1/2, 1/4 or 1/8 of the size.

        None: the file is damaged, or has to be converted to grey, which Pillow does.
        """
        if channels == 1 and not self.grey:
            return None
        width, height = (-(-length // divisor) for length in self.size)
        colours = "RGB" if channels == 3 else "GRAY"
        try:
            pixels = simplejpeg.decode_jpeg(self.content, colours, min_width=width, min_height=height)
        except ValueError:
            return None
        return np.asarray(pixels, dtype=np.uint8)


def jpeg_in(content: bytes) -> Jpeg | None:
    """The file as a JPEG; None for everything that Pillow has to decode."""
    if not content.startswith(_BEGINNING):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    if colours not in _COLOURS or width * height > (Image.MAX_IMAGE_PIXELS or 0):
        return None
    return Jpeg(content, width, height, colours == "Gray")


Picture = Image.Image | Jpeg
"""A picture that may not be decoded yet."""
Mode = Literal["RGB", "L"]
Pixels = npt.NDArray[np.uint8]

STANDARD = 224
"""The image size of nets for photographs."""
SMALL = 64
"""Pictures up to this size are kept in memory where possible, and shown whole."""

SCALED_FROM = 4
"""A JPEG is decoded at a smaller scale if its view shrinks at least by this factor."""

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
"""The same for arrays: whether to transpose, and then to reverse rows and columns."""
_SIDEWAYS = (5, 6, 7, 8)
_ON_THE_WAY = {"La": "LA", "LAB": "RGB"}
"""Modes that Pillow converts only through another mode."""


class Box(NamedTuple):
    """A rectangle of whole pixels."""

    left: int
    top: int
    width: int
    height: int


def short_side(size: int) -> int:
    """What the short side is scaled to before the centre of ``size`` is taken: 256 for 224, and in proportion.

    Small sizes are returned unchanged: the whole picture is used, and a picture of that size is not scaled.
    """
    return size if size <= SMALL else round(size * 256 / 224)


def natural_size(picture: Image.Image) -> int:
    """The default image size for such a picture: its size if small, else 224."""
    return min(picture.size) if min(picture.size) <= SMALL else STANDARD


def centre_view(picture: Picture, size: int, resize: int, mode: Mode = "RGB") -> Image.Image:
    """The short side scaled to ``resize``, then the central square of ``size``."""
    upright = _upright(picture, _orientation(picture), mode, min(picture.size) / resize)
    short = min(upright.size)
    # Only the square is computed, so extremely long pictures cost no more than others.
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


def decode_full(picture: Picture, mode: Mode = "RGB") -> Pixels:
    """The upright picture at its full size, as (height, width, channels)."""
    return np.ascontiguousarray(_upright_pixels(picture, _orientation(picture), mode))


def random_crop(pixels: Pixels, size: int, random: Random) -> Pixels:
    """The same as `random_view`, for a picture that is decoded at its full size."""
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
    """The picture as 8-bit RGB or grey, without transparency; raises ``ValueError`` if its value range is unknown."""
    if picture.mode in _ON_THE_WAY:
        picture = picture.convert(_ON_THE_WAY[picture.mode])
    if picture.mode == "F" or picture.mode.startswith("I"):
        picture = Image.fromarray(_eight_bits(np.asarray(picture), picture.mode))
    elif picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture if picture.mode == mode else picture.convert(mode)


def _eight_bits(values: npt.NDArray[Any], mode: str) -> Pixels:
    """Grey values of more than 8 bits: 16 bits are scaled, floats and 32 bits by the range of their values."""
    least, most = values.min().item(), values.max().item()
    ranges = (1, 255) if mode == "F" else (255, 65535) if mode == "I" else (65535,)
    white = next((end for end in ranges if most <= end), None)
    if white is None or not least >= 0:  # Neither holds for NaN.
        expected = " or ".join(f"0 to {end}" for end in ranges)
        raise ValueError(f"its values range from {least:g} to {most:g}, and not within {expected}")
    scaled: Pixels = np.rint(values * (255 / white)).astype(np.uint8)
    return scaled


def _upright(picture: Picture, orientation: int, mode: Mode, shrinkage: float = 1) -> Image.Image:
    """The decoded, upright picture; possibly at a smaller scale if it will shrink by this factor."""
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
    """The scale denominator for decoding a JPEG that will shrink a lot; keeps twice the detail needed."""
    if shrinkage < SCALED_FROM:
        return 1
    times = min(length // math.ceil(2 * length / shrinkage) for length in picture.size)
    return max((divisor for divisor in (2, 4, 8) if divisor <= times), default=1)


def _orientation(picture: Picture) -> int:
    # Reading EXIF costs more than decoding a small JPEG, and most files have none.
    if isinstance(picture, Jpeg):
        if not picture.has_metadata():
            return 1
        with Image.open(io.BytesIO(picture.content), formats=("JPEG",)) as opened:
            return _orientation(opened)
    if picture.format == "JPEG" and not picture.info.keys() & {"exif", "xmp"}:
        return 1
    orientation = picture.getexif().get(ExifTags.Base.Orientation)
    return orientation if isinstance(orientation, int) else 1


def _pixels(picture: Image.Image) -> Pixels:
    # Copied into writable memory, which torch requires.
    flat = np.frombuffer(bytearray(picture.tobytes()), dtype=np.uint8)
    return flat.reshape(picture.height, picture.width, -1)


def _resized(pixels: Pixels, size: int) -> Pixels:
    """Equal to Pillow's filter up to one level; torch's implementation is several times as fast."""
    if pixels.shape[:2] == (size, size):
        return pixels
    # Imported here, so that a process that only decodes starts quickly.
    import torch
    from torch.nn import functional

    images = torch.from_numpy(np.ascontiguousarray(pixels))[None].permute(0, 3, 1, 2)
    resized: Pixels = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)[0].numpy()
    return resized.transpose(1, 2, 0)


FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
FILE_LIMIT = 2**30
"""The maximum size of an image file in bytes. Pillow limits the number of pixels."""

UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What Pillow raises for a file that is missing, damaged, too large or no image."""


@contextmanager
def open_picture(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """The picture in a file, not decoded yet; of several frames the first. The file is closed at the end."""
    with open_regular(path, FILE_LIMIT) as file, Image.open(file, formats=FORMATS) as picture:
        yield picture


@contextmanager
def picture_in(content: bytes) -> Iterator[Image.Image]:
    """The picture in the content of a file, not decoded yet."""
    if len(content) > FILE_LIMIT:
        raise ValueError(f"it has {len(content)} bytes, and {FILE_LIMIT} are the most")
    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        yield picture


def read_picture(path: str | os.PathLike[str]) -> bytes:
    """The content of a picture's file."""
    with open_regular(path, FILE_LIMIT) as file:
        return file.read()


@contextmanager
def open_image(content: bytes) -> Iterator[Picture]:
    """The picture in the content of a file, for callers that only need its pixels."""
    jpeg = jpeg_in(content)
    if jpeg is not None:
        yield jpeg
        return
    with picture_in(content) as picture:
        yield picture


def damage(path: str | os.PathLike[str], thorough: bool = False) -> str | None:
    """Why this file cannot be read as an image; None if it can."""
    return why_unreadable(open_picture(path), thorough)


def why_unreadable(opened: AbstractContextManager[Image.Image], thorough: bool = False) -> str | None:
    """Why a picture cannot be read; None if it can.

    Not thorough: a JPEG with a sound header and an end marker, and a PNG whose checksums match, are accepted
    without decoding them.
    """
    try:
        with opened as picture:
            if not thorough and picture.format == "PNG":
                picture.verify()
            elif thorough or picture.format != "JPEG" or not _has_end_marker(picture):
                picture.load()
                flatten(picture)
    except UNREADABLE as error:
        return error_text(error)
    return None


def error_text(error: BaseException) -> str:
    """The message of Pillow or the operating system, shortened."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _has_end_marker(picture: Image.Image) -> bool:
    stream = getattr(picture, "fp", None)
    if stream is None:
        return False
    position = stream.tell()
    stream.seek(-2, os.SEEK_END)
    has_marker: bool = stream.read(2) == b"\xff\xd9"
    stream.seek(position)
    return has_marker


ROOM = 2
"""The short side of a stored picture in multiples of the image size, to leave room for random crops."""
_QUALITY = 95


def smaller_jpeg(pixels: Pixels, short: int) -> bytes:
    """A JPEG of the picture (height, width, channels), its short side no longer than this."""
    picture = _picture(pixels)
    shrinkage = max(1.0, min(picture.size) / short)
    size = round(picture.width / shrinkage), round(picture.height / shrinkage)
    encoded = io.BytesIO()
    picture.resize(size, Image.Resampling.LANCZOS).save(encoded, "JPEG", quality=_QUALITY, subsampling=0)
    return encoded.getvalue()


def png(pixels: Pixels) -> bytes:
    """A PNG of the picture, exactly as it is."""
    encoded = io.BytesIO()
    _picture(pixels).save(encoded, "PNG")
    return encoded.getvalue()


def _picture(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


_CHUNK = 1024


def overlaps(length: int, size: int) -> Tensor:
    """How much of input pixel j lies under output pixel i: whole numbers (size, length), rows summing to ``length``.

    On a ruler with ``length * size`` marks an input pixel is ``size`` marks wide and an output pixel ``length``.
    """
    import torch

    outer = torch.arange(size, dtype=torch.float64)[:, None] * length
    inner = torch.arange(length, dtype=torch.float64)[None, :] * size
    shared = torch.minimum(outer + length, inner + size) - torch.maximum(outer, inner)
    return shared.clamp_min(0)


def shrink(pixels: Tensor, size: int, what: str = "the images") -> Tensor:
    """uint8 (N, C, H, W) to uint8 (N, C, size, size): the area-weighted mean, rounded to nearest (halves up).

    Every sum is a whole number far below 2**53, so float64 computes it exactly whatever the ratio.
    ``F.interpolate(mode="area")`` would not do: it weights partly covered pixels as if they were covered fully.
    """
    import torch

    height, width = pixels.shape[-2:]
    if size < 1 or size > min(height, width):
        raise UserError(
            f"image size {size} is not possible for {what}, which are {height}x{width}; "
            f"images in memory are only made smaller, so give at most {min(height, width)}"
        )
    if (height, width) == (size, size):
        return pixels
    down, across = overlaps(height, size).T, overlaps(width, size).T
    area = height * width
    small = torch.empty((*pixels.shape[:-2], size, size), dtype=torch.uint8)
    for start in range(0, len(pixels), _CHUNK):
        sums = ((pixels[start : start + _CHUNK].double() @ across).mT @ down).mT
        small[start : start + _CHUNK] = ((sums + area / 2) / area).floor().to(torch.uint8)
    return small
