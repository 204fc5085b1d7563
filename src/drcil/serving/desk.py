"""All that a server works with: the model, the decoders, what was collected, the lesson under way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from fastapi import UploadFile

from .answering import Answer, Answering
from .collection import Collection, Item
from .current import Current
from .decoding import Decoders
from .lessons import Lessons, Status
from .limits import MB, Limits, Refusal
from .metrics import Metrics, resident_memory
from .rules import Rules

T = TypeVar("T")


class Desk:
    """Where requests are worked on."""

    def __init__(
        self,
        path: Path,
        rules: Rules,
        limits: Limits | None = None,
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.rules, self.limits, self.metrics = rules, limits or Limits(), Metrics()
        self.name = path.absolute().name
        self.current = Current(path, device)
        self.collection = Collection()
        self.lessons = Lessons(self.current, self.collection, self.metrics, device, threads)
        self._decoders = Decoders(min(4, os.cpu_count() or 1), self.limits, self.metrics)
        self._receiving = asyncio.Lock()
        self._arriving = 0
        self.metrics.gauge("drcil_classes", "Classes the model knows.", lambda: len(self.current.model.classes))
        self.metrics.gauge("drcil_learning", "Whether a lesson is under way.", lambda: int(self.lessons.status.busy))
        self.metrics.gauge("process_resident_memory_bytes", "Main memory of the server.", resident_memory)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Within the block requests can be worked on."""
        following: asyncio.Task[None] | None = None
        try:
            await self._decoders.start()
            following = asyncio.create_task(self.current.follow())
            yield
        finally:
            if following is not None:
                following.cancel()
            await self.lessons.close()
            await self._decoders.close()
            self.current.close()
            self.collection.close()

    async def predicted(
        self, images: Sequence[UploadFile], top: int, nearest: int
    ) -> tuple[Answering, list[Answer | Refusal]]:
        """What each image shows, or why it cannot be read; and the model that says so."""
        self._require_count(images, self.limits.predict_images)
        model = self.current.model
        views = await self._each(images, lambda read: self._decoders.view(read, model.shape))
        good = [view for view in views if not isinstance(view, Refusal)]
        _require_some(good, views)
        found = iter(await self.current.ask(lambda: model.answers(good, top, nearest)))
        return model, [view if isinstance(view, Refusal) else next(found) for view in views]

    async def kept(self, images: Sequence[UploadFile], label: str) -> list[Item | Refusal]:
        """Images to learn from, each as it is kept or why it is not."""
        self._require_count(images, self.limits.teach_images)
        shape = self.current.model.shape
        pictures = await self._each(images, lambda read: self._decoders.picture(read, shape))
        _require_some([one for one in pictures if not isinstance(one, Refusal)], pictures)
        return [one if isinstance(one, Refusal) else self.collection.add(one, label) for one in pictures]

    async def corrected(self, images: Sequence[UploadFile], label: str) -> list[Item | Refusal]:
        """Collect images with the class that they show."""
        if len(self.collection.corrected) + self._arriving + len(images) > self.limits.collected:
            raise Refusal(
                409, f"{self.limits.collected} corrected images are kept at most; fetch them, then delete them"
            )
        # They have their places from now on: others come while these are decoded.
        self._arriving += len(images)
        try:
            found = await self.kept(images, label)
        finally:
            self._arriving -= len(images)
        self.collection.corrected += [one for one in found if isinstance(one, Item)]
        return found

    async def taught(self, label: str, images: Sequence[UploadFile]) -> list[Item | Refusal]:
        """Begin a lesson with images of a class: a new one, or more of one that it knows."""
        async with self._alone():
            found = await self.kept(images, label)
            await self.lessons.begin([one for one in found if isinstance(one, Item)])
        return found

    async def taught_corrections(self) -> Status:
        """Begin a lesson with the collected images."""
        async with self._alone():
            items = list(self.collection.corrected)
            if not items:
                raise Refusal(400, "no images have been collected")
            return await self.lessons.begin(items, keep=items)

    def engaged(self) -> Refusal | None:
        """Why no lesson can begin now; None if one can."""
        if self._receiving.locked() or self.lessons.status.busy:
            return Refusal(409, "a lesson is under way; wait until it is over, or stop it")
        return None

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if refusal := self.engaged():
            raise refusal
        async with self._receiving:
            yield

    def _require_count(self, images: Sequence[UploadFile], most: int) -> None:
        if not 1 <= len(images) <= most:
            raise Refusal(400, f"{len(images)} images were sent; a request takes 1 to {most}")

    async def _each(
        self, images: Sequence[UploadFile], decode: Callable[[Callable[[], Awaitable[bytes]]], Awaitable[T]]
    ) -> list[T | Refusal]:
        async def one(image: UploadFile) -> T | Refusal:
            async def read() -> bytes:
                if (image.size or 0) > self.limits.file_bytes:
                    raise Refusal(400, f"it is larger than {self.limits.file_bytes / MB:g} MB")
                return await image.read()

            try:
                return await decode(read)
            except Refusal as refusal:
                return refusal

        return await asyncio.gather(*map(one, images))


def _require_some(good: Sequence[object], found: Sequence[object]) -> None:
    """Where no image can be read, the request is refused, for the reason of the first."""
    refusals = [one for one in found if isinstance(one, Refusal)]
    if not good and refusals:
        what = "the image" if len(refusals) == 1 else f"none of the {len(refusals)} images can be read: the first"
        raise Refusal(400, f"{what} cannot be read: {refusals[0].detail}")
