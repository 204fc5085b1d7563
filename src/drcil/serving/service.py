"""The served model and the state that requests share: predictions, nearest exemplars, corrections, learning."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from fastapi import UploadFile
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn import functional

from ..data.decoding import Pixels, png
from ..data.image_set import ArraySource, ImageSet
from ..errors import UserError
from ..inference import Inference, find_device
from ..models.model_directory import at_model, read_model
from ..models.model_format import STATE
from ..models.predictor import Predictor
from .access import MB, AccessPolicy, Limits, Metrics, Refusal
from .decoder import DecoderPool, DecodingError
from .learn_jobs import CollectedImage, CollectedImages, JobStatus, LearnJob

T = TypeVar("T")

_POLL_SECONDS = 2.0
"""Time between checks for a new version: other processes may change the model too."""
_COMPARED_EXEMPLARS = 50
"""Exemplars of a class that an image is compared with: the first ones, which herding selects as the most typical."""
_DIGITS = 6
"""Of a probability."""


class ClassProbability(BaseModel):
    name: str = Field(serialization_alias="class")
    probability: float


class PredictedImage(BaseModel):
    """Prediction for one image, or why it cannot be read."""

    file: str | None = None
    """File name from the client."""
    label: str | None = None
    """The most probable class; null below the threshold."""
    classes: list[ClassProbability] = []
    nearest: list[str] = []
    """Paths of the exemplars of that class that are most similar."""
    error: str | None = None


class SkippedFile(BaseModel):
    file: str | None
    error: str


class UploadResult(BaseModel):
    """Number of accepted images, and the files that were skipped."""

    label: str
    images: int
    skipped: list[SkippedFile]


class LoadedModel:
    """One version of a model. For one thread at a time."""

    def __init__(self, path: Path, device: str = "auto") -> None:
        self.key, self.version, self._model = at_model(
            path, lambda directory: (version_key(directory), directory.name, read_model(directory))
        )
        # Exemplars are read by this process itself: there are few.
        inference = Inference(find_device(device), self._model.data.mean, self._model.data.std, workers=0)
        self._predictor = Predictor.from_model(self._model, inference)
        self.classes, self.shape = self._predictor.classes, self._predictor.shape
        self.usage = self._model.usage
        self._exemplar_features: dict[int, Tensor] = {}

    def predict(self, views: Sequence[Pixels], top: int, threshold: float, nearest: int) -> list[PredictedImage]:
        """Predict the ``top`` classes of each view (size, size, channels) and find the ``nearest`` exemplars."""
        pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()
        probabilities, features = self._predictor.probabilities_and_features(ImageSet.unlabelled(ArraySource(pixels)))
        values, labels = probabilities.topk(min(top, len(self.classes)), dim=1)
        results = []
        for image_labels, image_values, feature in zip(labels.tolist(), values.tolist(), features, strict=True):
            best = image_labels[0]
            classes = [
                ClassProbability(name=self.classes[label], probability=round(value, _DIGITS))
                for label, value in zip(image_labels, image_values, strict=True)
            ]
            label = self.classes[best] if image_values[0] >= threshold else None
            indices = self._nearest(best, feature, nearest)
            paths = [f"/exemplars/{self.key}/{best}/{index}" for index in indices]
            results.append(PredictedImage(label=label, classes=classes, nearest=paths))
        return results

    def exemplar(self, label: int, index: int) -> bytes | None:
        """An exemplar of a class as PNG, if there is one."""
        images = self._exemplars(label)
        if images is None or not 0 <= index < len(images):
            return None
        try:
            pixels = images.read(slice(index, index + 1))[0]
        except UserError:
            return None
        return png(pixels.permute(1, 2, 0).numpy())

    def _nearest(self, label: int, feature: Tensor, count: int) -> list[int]:
        """The most similar exemplars of a class, the most similar first."""
        if not count:
            return []
        if label not in self._exemplar_features:
            features = feature.new_empty(0, len(feature))
            images = self._exemplars(label)
            if images is not None:
                with suppress(UserError):  # Another process may have removed their files with this version.
                    features = self._predictor.probabilities_and_features(images)[1]
            self._exemplar_features[label] = functional.normalize(features)
        similarity = self._exemplar_features[label] @ functional.normalize(feature, dim=0)
        return list(similarity.argsort(descending=True)[:count].tolist())

    def _exemplars(self, label: int) -> ImageSet | None:
        """The first exemplars of a class; None if there are none, or if their files are not available."""
        try:
            memory = self._model.memory.images
        except UserError:
            self._model.memory.images = memory = None
        if memory is None:
            return None
        exemplars = memory.subset(np.flatnonzero(memory.labels == label)[:_COMPARED_EXEMPLARS])
        return exemplars if len(exemplars) else None


def version_key(directory: Path) -> str:
    """Identifies a version. The number alone does not: after an undo it is used again."""
    try:
        return f"{directory.name}-{os.stat(directory / STATE).st_mtime_ns:x}"
    except OSError:
        return directory.name


class CurrentModel:
    """The current version of a model. The old one is used while a new one is loaded."""

    def __init__(self, path: Path, device: str = "auto") -> None:
        self.path, self._device = path, device
        self.model = LoadedModel(path, device)
        # One thread runs the net, so that requests do not compete for the cores.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="net")
        self._reload_lock = asyncio.Lock()
        self._last_error = ""

    async def run_in_model_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def reload(self) -> None:
        """Load the current version unless it is loaded already."""
        async with self._reload_lock:
            # In a thread: the model may be on a slow network drive.
            key = await asyncio.to_thread(at_model, self.path, version_key)
            if key != self.model.key:
                self.model = await asyncio.to_thread(LoadedModel, self.path, self._device)

    async def watch(self) -> None:
        """Reload whenever the model has changed; warn once if it cannot be read."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.reload()
            except Exception as error:  # The old version stays in use; a later one may be readable.
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    print(f"drcil: warning: the model has changed but cannot be read: {error}", file=sys.stderr)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class ServerState:
    """Everything that requests share."""

    def __init__(
        self,
        path: Path,
        policy: AccessPolicy,
        limits: Limits | None = None,
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.policy, self.limits, self.metrics = policy, limits or Limits(), Metrics()
        self.name = path.absolute().name
        self.current = CurrentModel(path, device)
        self.collection = CollectedImages()
        self.learn_job = LearnJob(path, self.current.reload, self.collection, self.metrics, device, threads)
        self.decoders = DecoderPool(min(4, os.cpu_count() or 1), self.limits, self.metrics)
        self._learn_lock = asyncio.Lock()
        """Held while the images of a learning job are received."""
        self._reserved_corrections = 0
        self.metrics.classes.set_function(lambda: len(self.current.model.classes))
        self.metrics.learning.set_function(lambda: self.learn_job.status.is_busy)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Within the block requests can be processed."""
        watching: asyncio.Task[None] | None = None
        try:
            await self.decoders.start()
            watching = asyncio.create_task(self.current.watch())
            yield
        finally:
            if watching is not None:
                watching.cancel()
            await self.learn_job.close()
            await self.decoders.close()
            self.current.close()
            self.collection.close()

    async def predict(
        self, files: Sequence[UploadFile], top: int, threshold: float, nearest: int
    ) -> tuple[LoadedModel, list[PredictedImage]]:
        """The model that predicts, and its prediction for each file."""
        self._require_count(files, self.limits.predict_images)
        model = self.current.model
        views = await self._decode_each(files, lambda read: self.decoders.view(read, model.shape))
        readable = [view for view in views if not isinstance(view, DecodingError)]
        predicted = iter(
            await self.current.run_in_model_thread(lambda: model.predict(readable, top, threshold, nearest))
        )
        images = [
            PredictedImage(error=str(view)) if isinstance(view, DecodingError) else next(predicted) for view in views
        ]
        for image, file in zip(images, files, strict=True):
            image.file = file.filename
        return model, images

    async def collect(self, files: Sequence[UploadFile], label: str) -> UploadResult:
        """Collect corrections: images with their true class."""
        if len(self.collection.corrections) + self._reserved_corrections + len(files) > self.limits.collected:
            raise Refusal(409, f"at most {self.limits.collected} corrections are kept; download them, then delete them")
        # Reserved from now on: other requests arrive while these images are decoded.
        self._reserved_corrections += len(files)
        try:
            images, result = await self._store(files, label)
        finally:
            self._reserved_corrections -= len(files)
        self.collection.corrections += images
        return result

    async def learn_images(self, files: Sequence[UploadFile], label: str) -> UploadResult:
        """Start to learn images of a new or a known class."""
        self.require_not_learning()
        async with self._learn_lock:
            images, result = await self._store(files, label)
            await self.learn_job.start(images)
        return result

    async def learn_corrections(self) -> JobStatus:
        """Start to learn the collected corrections."""
        self.require_not_learning()
        async with self._learn_lock:
            images = list(self.collection.corrections)
            if not images:
                raise Refusal(400, "there are no corrections")
            return await self.learn_job.start(images, keep_on_failure=images)

    def require_not_learning(self) -> None:
        if self._learn_lock.locked() or self.learn_job.status.is_busy:
            raise Refusal(409, "the model is learning already; wait until it has finished, or stop it")

    async def _store(self, files: Sequence[UploadFile], label: str) -> tuple[list[CollectedImage], UploadResult]:
        self._require_count(files, self.limits.teach_images)
        shape = self.current.model.shape
        images, skipped = [], []
        decoded = await self._decode_each(files, lambda read: self.decoders.encoded(read, shape))
        for file, image in zip(files, decoded, strict=True):
            if isinstance(image, DecodingError):
                skipped.append(SkippedFile(file=file.filename, error=str(image)))
            else:
                images.append(self.collection.add(image, label))
        return images, UploadResult(label=label, images=len(images), skipped=skipped)

    def _require_count(self, files: Sequence[UploadFile], limit: int) -> None:
        if not 1 <= len(files) <= limit:
            raise Refusal(400, f"{len(files)} images were sent; a request takes 1 to {limit}")

    async def _decode_each(
        self, files: Sequence[UploadFile], decode: Callable[[Callable[[], Awaitable[bytes]]], Awaitable[T]]
    ) -> list[T | DecodingError]:
        """Each image, or why it cannot be read; a refusal if none of them can."""

        async def decode_file(file: UploadFile) -> T | DecodingError:
            if (file.size or 0) > self.limits.file_bytes:
                return DecodingError(f"it is larger than {self.limits.file_bytes / MB:g} MB")
            try:
                return await decode(file.read)
            except DecodingError as error:
                return error

        images = await asyncio.gather(*map(decode_file, files))
        errors = [image for image in images if isinstance(image, DecodingError)]
        if len(errors) == len(images):
            subject = "the image" if len(images) == 1 else f"none of the {len(images)} images can be read: the first"
            raise Refusal(400, f"{subject} cannot be read: {errors[0]}")
        return images
