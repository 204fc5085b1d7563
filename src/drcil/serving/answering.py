"""A model that answers: classes with their probabilities, and the images it remembers that look most alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..data.sources.decode import Pixels
from ..data.sources.encode import png
from ..data.sources.imageset import ArraySource, ImageSet
from ..errors import UserError
from ..inference.device import find_device
from ..inference.inference import Inference
from ..models.directory import at_model, read_model
from ..models.predictor import Prediction, Predictor
from ..models.state import STATE

_COMPARED = 50
"""Exemplars of a class that an image is compared with, the first ones: herding took the most typical first."""


@dataclass(frozen=True)
class Answer:
    """What is seen in one image."""

    prediction: Prediction
    label: int
    """Of the most probable class."""
    nearest: tuple[int, ...]
    """Places of the exemplars of that class that look most like the image, the most alike first."""


class Answering:
    """One version of a model, loaded once. For one thread at a time."""

    def __init__(self, path: Path, device: str = "auto") -> None:
        self.key, self.version, self._model = at_model(
            path, lambda directory: (version_key(directory), directory.name, read_model(directory))
        )
        # Exemplars are read by this process itself: there are few.
        inference = Inference(find_device(device), self._model.data.mean, self._model.data.std, workers=0)
        self._predictor = Predictor.of(self._model, inference)
        self.classes, self.shape = self._predictor.classes, self._predictor.shape
        self.usage = self._model.usage
        self._features: dict[int, Tensor] = {}

    def answers(self, views: Sequence[Pixels], top: int, nearest: int) -> list[Answer]:
        """``top`` classes for each view (size, size, channels), and ``nearest`` exemplars of the best one."""
        pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()
        likely, features = self._predictor.look(ArraySource(pixels))
        values, labels = likely.topk(min(top, len(self.classes)), dim=1)
        found = []
        for best, own, feature in zip(labels.tolist(), values.tolist(), features, strict=True):
            prediction = Prediction(tuple(self.classes[label] for label in best), tuple(own))
            found.append(Answer(prediction, best[0], self._nearest(best[0], feature, nearest) if nearest else ()))
        return found

    def exemplar(self, label: int, place: int) -> bytes | None:
        """One of the images that are remembered of a class, as a PNG."""
        images = self._remembered(label)
        if images is None or not 0 <= place < len(images):
            return None
        try:
            pixels = images.source.read(images.rows[place : place + 1])[0]
        except UserError:
            return None
        return png(pixels.permute(1, 2, 0).numpy())

    def _nearest(self, label: int, feature: Tensor, count: int) -> tuple[int, ...]:
        if label not in self._features:
            images = self._remembered(label)
            try:
                known = self._predictor.look(images.source, images.rows)[1] if images else feature[None][:0]
            except UserError:  # Their files are gone: another process has changed the model often since.
                known = feature[None][:0]
            self._features[label] = functional.normalize(known)
        alike = self._features[label] @ functional.normalize(feature, dim=0)
        return tuple(alike.argsort(descending=True)[:count].tolist())

    def _remembered(self, label: int) -> ImageSet | None:
        """Of one class; none where the images of the memory are not at hand."""
        try:
            memory = self._model.memory.images
        except UserError:
            self._model.memory.images = memory = None
        if memory is None:
            return None
        own = memory.subset(np.flatnonzero(memory.labels == label)[:_COMPARED])
        return own if len(own) else None


def version_key(directory: Path) -> str:
    """Tells versions apart, also those that have the number of one that was undone."""
    try:
        return f"{directory.name}-{os.stat(directory / STATE).st_mtime_ns:x}"
    except OSError:
        return directory.name
