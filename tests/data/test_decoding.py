"""JPEGs are decoded without Pillow where they can be, and nobody can tell: every pixel is the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drcil.data.decoding import Mode, centre_view, decode_full, jpeg_in, open_image, picture_in, random_view, short_side

SIZES = [(500, 375), (301, 173), (64, 64), (33, 70), (17, 9), (8, 8), (1, 1)]
KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "progressive": {"progressive": True},
    "optimised": {"optimize": True, "quality": 30},
    "rgb": {"keep_rgb": True, "subsampling": "4:4:4"},
    "restarts": {"restart_marker_blocks": 3},
}


def drawn(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Soft shapes with some noise, in all colours."""
    random = np.random.default_rng(width * height)
    coarse = Image.fromarray(random.integers(256, size=(7, 9, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(coarse).astype(int) + random.integers(-9, 10, size=(height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def assert_the_same(content: bytes, quick: bool = True) -> None:
    """Whole, as the test view and as training views, in colours and grey."""
    assert (jpeg_in(content) is not None) == quick
    modes: tuple[Mode, ...] = ("RGB", "L")
    for mode in modes:
        assert_seen_alike(content, decode_full, mode)
        for size in (8, 40, 96):
            assert_seen_alike(content, centre_view, size, short_side(size), mode)
            assert_seen_alike(content, lambda one, *how: random_view(one, how[0], Random(1), how[1]), size, mode)


def assert_seen_alike(content: bytes, see: Callable[..., Any], *how: object) -> None:
    """Both opened anew each time: one that is decoded cannot be decoded smaller."""
    with open_image(content) as ours, picture_in(content) as theirs:
        assert np.array_equal(np.asarray(see(ours, *how)), np.asarray(see(theirs, *how)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_pixel_is_pillows(kind: str) -> None:
    for size in SIZES:
        assert_the_same(encoded(drawn(*size), **KINDS[kind]))


def test_grey_ones_too() -> None:
    for size in SIZES:
        assert_the_same(encoded(drawn(*size, "L")))


@pytest.mark.parametrize("orientation", range(10))
def test_they_are_turned_as_they_ask_for(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert_the_same(encoded(drawn(120, 70), exif=exif))
    assert_the_same(encoded(drawn(70, 120, "L"), exif=exif))


def test_only_its_header_is_asked_which_way_up_it_is() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    plain, exif = encoded(drawn(60, 40)), encoded(drawn(60, 40), exif=turned)
    segment = exif[exif.index(b"\xff\xe1") :]
    segment = segment[: 2 + int.from_bytes(segment[2:4])]
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF><rdf:Description "
    xmp += b'tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    xmp = b"\xff\xe1" + (2 + len(xmp)).to_bytes(2) + xmp
    scan = plain.index(b"\xff\xda")
    # Whoever takes the padding for a marker finds its length in what follows, and after it the marker of a scan.
    misleading = [
        b"\xff\xfe\xff\xfd" + skipped + 32765 * b"\xff\xda" + b"." * (1 - len(skipped)) for skipped in (b"", b".")
    ]
    asked = {
        "nothing": (plain, False),
        "at the beginning": (plain[:2] + segment + plain[2:], True),
        "behind all tables": (plain[:scan] + segment + plain[scan:], True),
        "after bytes of padding": (plain[:scan] + b"\xff\xff" + segment + plain[scan:], True),
        "after padding, 1": (plain[:2] + b"\xff" + segment + misleading[0] + plain[2:], True),
        "after padding, 2": (plain[:2] + b"\xff" + segment + misleading[1] + plain[2:], True),
        "XMP": (plain[:2] + xmp + plain[2:], True),
        "at the end": (plain + segment, False),
        "as a comment": (encoded(drawn(60, 40), comment=b"not Exif\0\0 at all"), False),
    }
    for where, (content, has_metadata) in asked.items():
        jpeg = jpeg_in(content)
        assert jpeg is not None and jpeg.has_metadata() == has_metadata, where
        assert_the_same(content)


def test_what_is_not_understood_is_left_to_pillow() -> None:
    assert_the_same(encoded(drawn(60, 40, "CMYK")), quick=False)
    png = io.BytesIO()
    drawn(60, 40).save(png, "PNG")
    assert_the_same(png.getvalue(), quick=False)
    assert jpeg_in(b"") is None and jpeg_in(b"\xff\xd8\xff") is None and jpeg_in(b"\xff\xd8\xff" + bytes(99)) is None


def test_a_picture_that_is_too_large_is_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(drawn(64, 64))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    assert jpeg_in(content) is None


@pytest.mark.parametrize("kind", ["4:2:0", "progressive"])
def test_a_damaged_one_fails_or_is_read_as_pillow_has_it(kind: str) -> None:
    content = encoded(drawn(200, 150), **KINDS[kind])
    random = Random(0)
    for _ in range(40):
        damaged = bytearray(content[: random.randrange(len(content))] if random.random() < 0.3 else content)
        for _ in range(random.randrange(4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        assert _seen(open_image(bytes(damaged))) == _seen(picture_in(bytes(damaged)))


def _seen(opened: Any) -> bytes | None:
    try:
        with opened as picture:
            return random_view(picture, 32, Random(1)).tobytes()
    except Exception:
        return None
