"""``python -m drcil.serving.decoder``: images from strangers, decoded in a process that may die of them.

Orders come on standard input, answers go to standard output; each is a line of JSON, and bytes as many as it says. The
process has bounds of its own on memory and can write no file. It ends when its parent does. Only Pillow and numpy are
imported, so that it starts quickly.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from ..data.sources.decode import Mode, centre_view, short_side, whole
from ..data.sources.encode import ROOM, png, smaller_jpeg
from ..data.sources.opening import FORMATS, UNREADABLE, reason

_MEMORY = 2 * 2**30
"""Bytes of address space: an image of 50 megapixels with transparency takes about a third of it."""
_EXACT = 256**2
"""Pixels of a picture that is kept without loss."""


def main() -> None:
    """Carry out orders until there are none."""
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _confine()
    # The bound is ours: that of Pillow is a warning first.
    Image.MAX_IMAGE_PIXELS = None
    _serve(sys.stdin.buffer, answers)


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    while line := orders.readline():
        order = json.loads(line)
        content = orders.read(order["bytes"])
        try:
            suffix, found = _carried_out(order, content)
            answer: dict[str, Any] = {"suffix": suffix, "bytes": len(found)}
        except UNREADABLE as error:
            answer, found = {"error": reason(error), "bytes": 0}, b""
        answers.write(json.dumps(answer).encode() + b"\n" + found)
        answers.flush()


def _carried_out(order: dict[str, Any], content: bytes) -> tuple[str, bytes]:
    """The view that a net takes, as raw pixels; or a clean picture, to be learnt from.

    Either is made of pixels alone: what a file is besides an image (a ZIP archive, a web page) goes no further.
    """
    if not content:
        raise ValueError("it is empty")
    mode: Mode = "RGB" if order["channels"] == 3 else "L"
    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        if picture.width * picture.height > order["pixels"]:
            has = f"it has {picture.width} x {picture.height} pixels"
            raise ValueError(f"{has}; at most {order['pixels'] / 1e6:g} million are accepted")
        if order["purpose"] == "view":
            view = centre_view(picture, order["size"], short_side(order["size"]), mode)
            return "", np.asarray(view).tobytes()
        pixels = whole(picture, mode)
    if pixels.shape[0] * pixels.shape[1] <= _EXACT:
        return "png", png(pixels)
    return "jpg", smaller_jpeg(pixels, ROOM * order["size"])


def _confine() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such bounds.
        return
    bounds = {resource.RLIMIT_AS: _MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for bound, most in bounds.items():
        _, hard = resource.getrlimit(bound)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(bound, (most, most))


if __name__ == "__main__":
    main()
