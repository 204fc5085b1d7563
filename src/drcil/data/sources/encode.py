"""From pixels back to pictures: what is kept of a large one, and what is shown of a small one."""

from __future__ import annotations

import io

from PIL import Image

from .decode import Pixels

ROOM = 2
"""How many times the size that a net sees the short side of a kept picture has, for random crops of it."""
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
