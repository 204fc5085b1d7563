"""Files as pictures: which are opened at all, and what is wrong with one that cannot be read.

A file may be anything, whatever its name says. Only regular files are opened, and only by decoders of image formats;
Pillow knows others that run programs.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from PIL import Image, UnidentifiedImageError

from ...reading import open_file
from .decode import Picture, flatten
from .jpeg import jpeg_in

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
FILE_LIMIT = 2**30
"""Bytes of an image file, at most. How many pixels it may have is Pillow's own limit."""

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
    with open_file(path, FILE_LIMIT) as file, Image.open(file, formats=FORMATS) as picture:
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
    with open_file(path, FILE_LIMIT) as file:
        return file.read()


@contextmanager
def quickly(content: bytes) -> Iterator[Picture]:
    """The picture in the content of a file, for whoever needs its pixels and nothing else."""
    jpeg = jpeg_in(content)
    if jpeg is not None:
        yield jpeg
        return
    with picture_in(content) as picture:
        yield picture


def damage(path: str | os.PathLike[str], thorough: bool = False) -> str | None:
    """Why this file cannot be read as an image; None if it can."""
    return damage_of(open_picture(path), thorough)


def damage_of(opened: AbstractContextManager[Image.Image], thorough: bool = False) -> str | None:
    """Why a picture cannot be read; None if it can.

    Not thorough: a JPEG with a sound header and an end marker, and a PNG whose checksums match, are believed
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
        return reason(error)
    return None


def reason(error: BaseException) -> str:
    """What Pillow or the system says, in few words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _has_end_marker(picture: Image.Image) -> bool:
    stream = getattr(picture, "fp", None)
    if stream is None:
        return False
    place = stream.tell()
    stream.seek(-2, os.SEEK_END)
    found: bool = stream.read(2) == b"\xff\xd9"
    stream.seek(place)
    return found
