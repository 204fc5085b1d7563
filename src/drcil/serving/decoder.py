"""Sandboxed decoding of uploaded images: a pool of processes, and ``python -m drcil.serving.decoder``, which they run.

A decoder reads jobs from standard input and writes results to standard output; each is a line of JSON followed by as
many bytes as it says. The protocol is our own because process pools of libraries unpickle results, and a malicious
image may have taken over the decoder.

A decoder has a memory limit and cannot write files. It ends when its parent does. It must start quickly, so this module
does not import torch or the server.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from PIL import Image

from ..data.decoding import (
    FORMATS,
    ROOM,
    UNREADABLE,
    Mode,
    Pixels,
    centre_view,
    decode_full,
    error_text,
    png,
    short_side,
    smaller_jpeg,
)
from ..settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from ..data.image_set import ImageShape
    from .access import Limits, Metrics

_MEMORY = 2 * 2**30
"""Bytes of address space: an image of 50 megapixels with transparency takes about a third of it."""
_LOSSLESS_PIXELS = 256**2
"""Images up to this size are stored without loss."""
_CLOSE_SECONDS = 1.0
"""Time for a decoder to finish its image when the server stops."""


class DecodingError(Exception):
    """An image cannot be decoded; the message completes the sentence "the image cannot be read: …"."""


class EncodedImage(NamedTuple):
    """An image encoded anew from its pixels, without metadata."""

    suffix: str
    content: bytes


def child_environment(**variables: str) -> dict[str, str]:
    """The environment of child processes: that of this process plus ``variables``, without the token."""
    return {**{name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}, **variables}


class _Decoder:
    """One decoder process, started again if it has ended."""

    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "drcil.serving.decoder"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is for the server, which then closes the pipes.
            start_new_session=True,
            env=child_environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"),
        )

    async def decode(self, job: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        if self.process is None or self.process.returncode is not None:
            await self.start()
        assert self.process is not None
        jobs, results = self.process.stdin, self.process.stdout
        assert jobs is not None and results is not None
        jobs.write(json.dumps({**job, "bytes": len(content)}).encode() + b"\n")
        jobs.write(content)
        await jobs.drain()
        result = json.loads(await results.readline() or b"null")
        if result is None:
            raise EOFError
        return result, await results.readexactly(result["bytes"])

    async def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class DecoderPool:
    """A few decoders; each decodes one image at a time, further images wait."""

    def __init__(self, count: int, limits: Limits, metrics: Metrics) -> None:
        self.count, self._limits, self._metrics = count, limits, metrics
        self._idle: asyncio.Queue[_Decoder] = asyncio.Queue()

    async def start(self) -> None:
        for _ in range(self.count):
            decoder = _Decoder()
            await decoder.start()
            self._idle.put_nowait(decoder)

    async def close(self) -> None:
        for _ in range(self.count):
            with suppress(TimeoutError):
                decoder = await asyncio.wait_for(self._idle.get(), _CLOSE_SECONDS)
                await decoder.kill()

    def process_ids(self) -> list[int]:
        """The processes of all decoders, while none of them is busy."""
        decoders = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        for decoder in decoders:
            self._idle.put_nowait(decoder)
        return [decoder.process.pid for decoder in decoders if decoder.process is not None]

    async def view(self, read: Callable[[], Awaitable[bytes]], shape: ImageShape) -> Pixels:
        """The input of a net, (size, size, channels)."""
        _, pixels = await self._decode("view", read, shape)
        return np.frombuffer(pixels, dtype=np.uint8).reshape(shape.size, shape.size, shape.channels)

    async def encoded(self, read: Callable[[], Awaitable[bytes]], shape: ImageShape) -> EncodedImage:
        """An image to store and learn from."""
        result, content = await self._decode("store", read, shape)
        return EncodedImage(result["suffix"], content)

    async def _decode(
        self, purpose: Literal["view", "store"], read: Callable[[], Awaitable[bytes]], shape: ImageShape
    ) -> tuple[dict[str, Any], bytes]:
        """Decode what ``read`` returns; it is read only when a decoder is free, so that few images are in memory."""
        job = {"purpose": purpose, "size": shape.size, "channels": shape.channels, "pixels": self._limits.pixels}
        decoder = await self._idle.get()
        is_decoding = False
        try:
            content = await read()
            is_decoding = True
            async with asyncio.timeout(self._limits.decode_seconds):
                result, decoded = await decoder.decode(job, content)
            is_decoding = False
        except (EOFError, OSError, ValueError, TimeoutError) as error:
            self._metrics.images.labels("crashed").inc()
            is_timeout = isinstance(error, TimeoutError)
            raise DecodingError("it takes too long to decode" if is_timeout else "it cannot be decoded") from None
        finally:
            if is_decoding:  # It crashed, timed out or was cancelled.
                self._metrics.decoders_replaced.inc()
                await decoder.kill()
            self._idle.put_nowait(decoder)
        if "error" in result:
            self._metrics.images.labels("refused").inc()
            raise DecodingError(result["error"])
        self._metrics.images.labels("decoded").inc()
        return result, decoded


def main() -> None:
    """Decode images until standard input ends."""
    # What a library prints must not be taken for a result.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_resources()
    # Jobs have their own limit; Pillow only warns at first.
    Image.MAX_IMAGE_PIXELS = None
    decode_jobs(sys.stdin.buffer, results)


def decode_jobs(jobs: BinaryIO, results: BinaryIO) -> None:
    """Decode image after image."""
    while line := jobs.readline():
        job = json.loads(line)
        content = jobs.read(job["bytes"])
        try:
            suffix, decoded = _decode(job, content)
            result: dict[str, Any] = {"suffix": suffix, "bytes": len(decoded)}
        except UNREADABLE as error:
            result, decoded = {"error": error_text(error), "bytes": 0}, b""
        results.write(json.dumps(result).encode() + b"\n" + decoded)
        results.flush()


def _decode(job: dict[str, Any], content: bytes) -> tuple[str, bytes]:
    """The input of a net as raw pixels ("view"), or a newly encoded image to learn from ("store").

    Both are made of pixels alone: anything else in the file (metadata, a ZIP archive, a web page) is dropped.
    """
    if not content:
        raise ValueError("it is empty")
    mode: Mode = "RGB" if job["channels"] == 3 else "L"
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        if image.width * image.height > job["pixels"]:
            size = f"it has {image.width} x {image.height} pixels"
            raise ValueError(f"{size}; at most {job['pixels'] / 1e6:g} million are accepted")
        if job["purpose"] == "view":
            view = centre_view(image, job["size"], short_side(job["size"]), mode)
            return "", np.asarray(view).tobytes()
        pixels = decode_full(image, mode)
    if pixels.shape[0] * pixels.shape[1] <= _LOSSLESS_PIXELS:
        return "png", png(pixels)
    return "jpg", smaller_jpeg(pixels, ROOM * job["size"])


def _limit_resources() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits.
        return
    limits = {resource.RLIMIT_AS: _MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for kind, limit in limits.items():
        _, hard_limit = resource.getrlimit(kind)
        limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    main()
