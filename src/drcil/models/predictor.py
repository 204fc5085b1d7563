"""The predictor: a trained classifier ready for use, without exemplars, training data or an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ..arguments import instance, text, whole
from ..data.own import images_from
from ..data.sources.imageset import ImageSet, ImageShape, Source
from ..errors import UserError, unknown
from ..inference.device import find_device
from ..inference.frozen import frozen_readouts
from ..inference.inference import Inference
from ..inference.ranking import Ranking
from ..limits import TOP, Precision
from ..nets.output import Readout
from ..streams.next_task import named_images
from .directory import read_model
from .model import Model


@dataclass(frozen=True)
class Prediction:
    """The best classes for one image, best first, with the readout's scores."""

    classes: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.classes[0]


class Predictor:
    """Frozen, folded readouts with class names, image shape and normalisation; the nets are built once.

    Pictures, paths, arrays or tensors in, ranked classes with scores out.
    """

    def __init__(
        self, readouts: Mapping[str, Readout], classes: Sequence[str], shape: ImageShape, inference: Inference
    ) -> None:
        """``readouts``: the leading one first; copies of them are kept."""
        instance("readouts", readouts, Mapping)
        if not instance("classes", classes, Sequence):
            raise UserError("there is nothing to predict yet: no task has been learnt")
        self.classes, self.shape = tuple(classes), instance("shape", shape, ImageShape)
        self._inference = instance("inference", inference, Inference)
        self._readouts = frozen_readouts(readouts)
        for readout in self._readouts.values():
            for part in (readout.net, readout.scores):
                if isinstance(part, nn.Module):
                    inference.placed(part)

    @classmethod
    def of(cls, model: Model, inference: Inference) -> Predictor:
        """What a model can tell of images, as it is now."""
        return cls(model.readouts(), model.classes, model.shape, inference)

    @property
    def readouts(self) -> tuple[str, ...]:
        """The names of the ways to read class scores, the leading one first."""
        return tuple(self._readouts)

    def predict(self, images: Any, top: int = 1, readout: str | None = None) -> list[Prediction]:
        """The ``top`` best class names for each image, by the leading readout or another."""
        top = whole("top", top, TOP)
        source = self._source(images)
        rows = np.arange(len(source), dtype=np.int64)
        ranking = self.rank(ImageSet(source, rows, np.zeros_like(rows)), top, [self._named(readout)])
        ((classes, scores),) = ranking.values()
        return [
            Prediction(tuple(self.classes[label] for label in labels), tuple(values))
            for labels, values in zip(classes.tolist(), scores.tolist(), strict=True)
        ]

    def evaluate(self, images: Any, labels: Any = None, readout: str | None = None) -> float:
        """Percent of images classified right: of an image set (a task's ``test``), or of images with class names."""
        if isinstance(images, ImageSet):
            if labels is not None:
                raise UserError("an image set has labels of its own; evaluate takes it without class names")
        else:
            images = named_images(self._source(images), () if labels is None else labels, self.classes)
        if not len(images):
            raise UserError("evaluate needs at least one image")
        name = self._named(readout)
        best = self.rank(images, 1, [name])[name].classes[:, 0].numpy()
        return float((best == images.labels).mean() * 100)

    def rank(self, images: ImageSet, best: int = 10, readouts: Sequence[str] | None = None) -> dict[str, Ranking]:
        """The best classes of each image, as labels, by these readouts or all; each net sees the images once."""
        given = ImageShape.of(instance("images", images, ImageSet).source)
        best = whole("best", best, TOP)
        if str(given) != str(self.shape):
            raise UserError(f"the images are of {given} (channels, height, width), but the model takes {self.shape}")
        chosen = {self._named(name): self._readouts[self._named(name)] for name in readouts or self._readouts}
        return self._inference.rank(chosen, images, best)

    def _named(self, readout: str | None) -> str:
        """The readout of this name; None: the leading one."""
        name = self.readouts[0] if readout is None else text("readout", readout)
        if name not in self._readouts:
            raise unknown("readout", name, self._readouts)
        return name

    def _source(self, images: Any) -> Source:
        return images_from(images, self.shape.size, self.shape.channels)


def load_predictor(
    path: str | Path,
    *,
    device: str = "auto",
    precision: Precision = "32",
    workers: int = 2,
    batch: int = 500,
) -> Predictor:
    """The predictor of a saved model. Neither its exemplars nor any dataset are needed."""
    model = read_model(path)
    inference = Inference(
        find_device(device), model.data.mean, model.data.std, precision=precision, workers=workers, batch=batch
    )
    return Predictor.of(model, inference)
