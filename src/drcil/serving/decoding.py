"""The processes that decode what clients send. One that dies or takes too long is replaced; the server goes on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np

from ..data.sources.decode import Pixels
from ..data.sources.imageset import ImageShape
from .environment import environment
from .limits import Limits, Refusal
from .metrics import Metrics

Purpose = Literal["view", "keep"]


class Picture(NamedTuple):
    """A clean picture, encoded anew, without anything that the file held besides."""

    suffix: str
    content: bytes


class _Decoder:
    """One process and what is said to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def started(cls) -> _Decoder:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "drcil.serving.decoder"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # The interrupt key is for the server, which then closes the pipes.
                start_new_session=True,
                env=environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"),
            )
        )

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, order: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None and answers is not None
        orders.write(json.dumps({**order, "bytes": len(content)}).encode() + b"\n")
        orders.write(content)
        await orders.drain()
        answer = json.loads(await answers.readline() or b"null")
        if answer is None:
            raise EOFError
        return answer, await answers.readexactly(answer["bytes"])

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Decoders:
    """A few of them, each with one image at a time; who comes later waits."""

    def __init__(self, count: int, limits: Limits, metrics: Metrics) -> None:
        self._count, self._limits, self._metrics = count, limits, metrics
        self._free: asyncio.Queue[_Decoder | None] = asyncio.Queue()

    async def start(self) -> None:
        for decoder in await asyncio.gather(*(_Decoder.started() for _ in range(self._count))):
            self._free.put_nowait(decoder)

    async def close(self) -> None:
        for _ in range(self._count):
            with suppress(TimeoutError):
                decoder = await asyncio.wait_for(self._free.get(), 1.0)
                if decoder is not None:
                    await decoder.end()

    async def view(self, read: Callable[[], Awaitable[bytes]], shape: ImageShape) -> Pixels:
        """What a net sees of an image, (size, size, channels); a refusal if it is none."""
        _, pixels = await self._decoded("view", read, shape)
        return np.frombuffer(pixels, dtype=np.uint8).reshape(shape.size, shape.size, shape.channels)

    async def picture(self, read: Callable[[], Awaitable[bytes]], shape: ImageShape) -> Picture:
        """An image to keep; a refusal if it is none."""
        answer, content = await self._decoded("keep", read, shape)
        return Picture(answer["suffix"], content)

    async def _decoded(
        self, purpose: Purpose, read: Callable[[], Awaitable[bytes]], shape: ImageShape
    ) -> tuple[dict[str, Any], bytes]:
        """The content is read only when its turn has come, so that few images are in memory at a time."""
        order = {
            "purpose": purpose,
            "size": shape.size,
            "channels": shape.channels,
            "pixels": self._limits.pixels,
        }
        decoder = await self._free.get()
        busy = False
        try:
            content = await read()
            if decoder is None or not decoder.alive:
                decoder = await _Decoder.started()
            busy = True
            async with asyncio.timeout(self._limits.decode_seconds):
                answer, found = await decoder.ask(order, content)
            busy = False
        except (EOFError, OSError, ValueError, TimeoutError) as error:
            slow = isinstance(error, TimeoutError)
            self._metrics.count("drcil_images_total", outcome="deadly")
            raise Refusal(400, "it takes too long to decode" if slow else "it cannot be decoded") from None
        finally:
            if busy and decoder is not None:
                self._metrics.count("drcil_decoders_replaced_total")
                await decoder.end()
                decoder = None
            self._free.put_nowait(decoder)
        if "error" in answer:
            self._metrics.count("drcil_images_total", outcome="refused")
            raise Refusal(400, answer["error"])
        self._metrics.count("drcil_images_total", outcome="decoded")
        return answer, found
