"""The predictor: a trained classifier ready for use, without exemplars, training data or an engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..arguments import instance, text, whole
from ..data.labelled import named_images
from ..data.own import images_from
from ..data.pictures import Unreadable, decoded
from ..data.sources.files import FileSource
from ..data.sources.imageset import ArraySource, ImageSet, ImageShape, Int64, Source
from ..errors import UserError, unknown
from ..inference.device import find_device
from ..inference.frozen import frozen_readouts
from ..inference.inference import Inference
from ..inference.ranking import Ranking
from ..limits import BATCH, TOP, Precision
from ..nets.output import Output, Readout
from ..streams.next_task import known_images
from .directory import read_model
from .model import Model
from .usage import Calibration


@dataclass(frozen=True)
class Prediction:
    """The best classes for one image, best first, each with its probability."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    file: str | None = field(default=None, compare=False)
    """Where the image is, if it is a file."""

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.classes[0]

    @property
    def probability(self) -> float:
        """That of the label."""
        return self.probabilities[0]


class Predictor:
    """Frozen, folded readouts with class names, image shape and normalisation; the nets are built once.

    Pictures, paths, arrays or tensors in, ranked classes with probabilities out.
    """

    def __init__(
        self,
        readouts: Mapping[str, Readout],
        classes: Sequence[str],
        shape: ImageShape,
        inference: Inference,
        temperature: float = 1.0,
        calibration: Calibration | None = None,
    ) -> None:
        """``readouts``: the leading one first; copies of them are kept. ``temperature``: what scores of that one are
        divided by before they become probabilities. ``calibration``: what is known of these.
        """
        instance("readouts", readouts, Mapping)
        if not instance("classes", classes, Sequence):
            raise UserError("there is nothing to predict yet: no task has been learnt")
        self.classes, self.shape = tuple(classes), instance("shape", shape, ImageShape)
        self._inference, self.temperature = instance("inference", inference, Inference), temperature
        self.calibration, self._readouts = calibration, frozen_readouts(readouts)
        for readout in self._readouts.values():
            for part in (readout.net, readout.scores):
                if isinstance(part, nn.Module):
                    inference.placed(part)

    def __repr__(self) -> str:
        classes = len(self.classes)
        return (
            f"<Predictor: {classes} class{'' if classes == 1 else 'es'}, images of {self.shape}, "
            f"readout{'' if len(self.readouts) == 1 else 's'} {', '.join(self.readouts)}, "
            f"{'not calibrated' if self.calibration is None else 'calibrated'}>"
        )

    @classmethod
    def of(cls, model: Model, inference: Inference) -> Predictor:
        """What a model can tell of images, as it is now."""
        return cls(model.readouts(), model.classes, model.shape, inference, model.temperature, model.calibration)

    @property
    def readouts(self) -> tuple[str, ...]:
        """The names of the ways to read class scores, the leading one first."""
        return tuple(self._readouts)

    def predict(self, images: Any, top: int = 1, readout: str | None = None) -> list[Prediction]:
        """The ``top`` most probable classes for each image, by the leading readout or another.

        Images: a path of a file or of a directory, a picture, an array, a tensor, or a list of such.
        """
        source = self._source(images)
        found = self._predicted(_unlabelled(source), whole("top", top, TOP), readout)
        if not isinstance(source, FileSource):
            return found
        return [replace(one, file=source.name(row)) for row, one in enumerate(found)]

    def predict_files(
        self, paths: Iterable[str | os.PathLike[str]], top: int = 1, readout: str | None = None, batch: int = 64
    ) -> Iterator[Prediction | Unreadable]:
        """The same for any number of files, one after the other, in memory that does not grow with their number.

        A file that cannot be read as an image is answered with the reason, and the others go on.
        """
        self._named(readout)
        top = whole("top", top, TOP)
        for names, views in decoded(paths, self.shape, self._inference.workers, whole("batch", batch, BATCH)):
            images = [view for view in views if not isinstance(view, str)]
            found: Iterator[Prediction] = iter(())
            if images:
                pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
                found = iter(self._predicted(_unlabelled(ArraySource(pixels)), top, readout))
            for name, view in zip(names, views, strict=True):
                yield Unreadable(name, view) if isinstance(view, str) else replace(next(found), file=name)

    def probabilities(self, images: Any, readout: str | None = None) -> npt.NDArray[np.float32]:
        """The probability of every class for each image, (N, classes), in the order of ``classes``."""
        likely, seen = self._likelihoods(self._named(readout)), _unlabelled(self._source(images))
        (found,) = self._inference.outputs(likely.net, seen, lambda output: (likely.scores(output),))
        array: npt.NDArray[np.float32] = found.numpy()
        return array

    def look(self, source: Source, rows: Int64 | None = None) -> tuple[Tensor, Tensor]:
        """The probability of every class (N, classes), and the pooled features (N, channels), in one pass.

        By the leading readout, of all images of a source or of these rows.
        """
        self._require_shape(source)
        likely, images = self._likelihoods(self.readouts[0]), _unlabelled(source)
        chosen = images if rows is None else images.subset(rows)
        found = self._inference.outputs(likely.net, chosen, lambda out: (likely.scores(out), out.features.pooled))
        return found[0], found[1]

    def scores(self, images: ImageSet, readout: str | None = None) -> Tensor:
        """What a readout, the leading one or another, gives each class for each image, (N, classes); no softmax yet."""
        self._require_shape(instance("images", images, ImageSet).source)
        lead = self._readouts[self._named(readout)]
        return self._inference.outputs(lead.net, images, lambda output: (lead.scores(output),))[0]

    def _predicted(self, images: ImageSet, top: int, readout: str | None) -> list[Prediction]:
        name = self._named(readout)
        classes, values = self._inference.rank({name: self._likelihoods(name)}, images, top)[name]
        return [
            Prediction(tuple(self.classes[label] for label in labels), tuple(likely))
            for labels, likely in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _likelihoods(self, name: str) -> Readout:
        """The readout, its scores made probabilities: softmax of them, divided by the temperature."""
        readout, temperature = self._readouts[name], self.temperature if name == self.readouts[0] else 1.0

        def softmax(output: Output) -> Tensor:
            return (readout.scores(output) / temperature).softmax(dim=1)

        return Readout(readout.net, softmax)

    def evaluate(self, images: Any, labels: Any = None, readout: str | None = None) -> float:
        """Percent of images classified right: of an image set (a task's ``test``), or of images with class names.

        A folder with a directory per class, and a CSV, have class names of their own.
        """
        if not isinstance(images, ImageSet):
            found = named_images(images, labels, self.shape.size, self.shape.channels)
            images = known_images(found.images, found.classes, self.classes)
        elif labels is not None:
            raise UserError("an image set has labels of its own; evaluate takes it without class names")
        if not len(images):
            raise UserError("evaluate needs at least one image")
        name = self._named(readout)
        best = self.rank(images, 1, [name])[name].classes[:, 0].numpy()
        return float((best == images.labels).mean() * 100)

    def rank(self, images: ImageSet, best: int = 10, readouts: Sequence[str] | None = None) -> dict[str, Ranking]:
        """The best classes of each image, as labels, by these readouts or all; each net sees the images once."""
        self._require_shape(instance("images", images, ImageSet).source)
        best = whole("best", best, TOP)
        chosen = {self._named(name): self._readouts[self._named(name)] for name in readouts or self._readouts}
        return self._inference.rank(chosen, images, best)

    def _named(self, readout: str | None) -> str:
        """The readout of this name; None: the leading one."""
        name = self.readouts[0] if readout is None else text("readout", readout)
        if name not in self._readouts:
            raise unknown("readout", name, self._readouts)
        return name

    def _source(self, images: Any) -> Source:
        source = images_from(images, self.shape.size, self.shape.channels)
        self._require_shape(source)
        if isinstance(source, FileSource) and source is not images:
            source.advice = "predict_files takes paths of files, names such ones and answers the others"
        return source

    def _require_shape(self, source: Source) -> None:
        given = ImageShape.of(source)
        if str(given) != str(self.shape):
            raise UserError(f"the images are of {given} (channels, height, width), but the model takes {self.shape}")


def _unlabelled(source: Source) -> ImageSet:
    """All images of a source; nobody asks for their labels."""
    rows = np.arange(len(source), dtype=np.int64)
    return ImageSet(source, rows, np.zeros_like(rows))


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
