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

from ..data.class_folders import load_labelled
from ..data.file_source import FileSource
from ..data.image_set import ArraySource, ImageSet, ImageShape, Source
from ..data.user_images import Unreadable, decoded, load_images
from ..errors import UserError, check_int, check_text, check_type, unknown_name
from ..inference import Inference, Ranking, find_device
from ..nets.net import Output, Readout, frozen_readouts
from ..settings import BATCH, TOP, Precision
from ..streams.stream import known_images
from .model import Model
from .model_directory import read_model
from .usage import Calibration


@dataclass(frozen=True)
class Prediction:
    """The best classes for one image, best first, each with its probability."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    file: str | None = field(default=None, compare=False)
    """The path of the image, if it is a file."""

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.classes[0]

    @property
    def probability(self) -> float:
        """The probability of the label."""
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
        check_type("readouts", readouts, Mapping)
        if not check_type("classes", classes, Sequence):
            raise UserError("there is nothing to predict yet: no task has been learnt")
        self.classes, self.shape = tuple(classes), check_type("shape", shape, ImageShape)
        self._inference, self.temperature = check_type("inference", inference, Inference), temperature
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
    def from_model(cls, model: Model, inference: Inference) -> Predictor:
        """The predictor of a model in its current state."""
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
        predictions = self._predicted(ImageSet.unlabelled(source), check_int("top", top, TOP), readout)
        if not isinstance(source, FileSource):
            return predictions
        return [replace(prediction, file=source.name(row)) for row, prediction in enumerate(predictions)]

    def predict_files(
        self, paths: Iterable[str | os.PathLike[str]], top: int = 1, readout: str | None = None, batch: int = 64
    ) -> Iterator[Prediction | Unreadable]:
        """The same for any number of files, in constant memory.

        A file that cannot be read as an image is answered with the reason, and the others go on.
        """
        self._named(readout)
        top = check_int("top", top, TOP)
        for names, views in decoded(paths, self.shape, self._inference.workers, check_int("batch", batch, BATCH)):
            images = [view for view in views if not isinstance(view, str)]
            predictions: Iterator[Prediction] = iter(())
            if images:
                pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
                predictions = iter(self._predicted(ImageSet.unlabelled(ArraySource(pixels)), top, readout))
            for name, view in zip(names, views, strict=True):
                yield Unreadable(name, view) if isinstance(view, str) else replace(next(predictions), file=name)

    def probabilities(self, images: Any, readout: str | None = None) -> npt.NDArray[np.float32]:
        """The probability of every class for each image, (N, classes), in the order of ``classes``."""
        likelihoods, image_set = self._likelihoods(self._named(readout)), ImageSet.unlabelled(self._source(images))
        (scores,) = self._inference.outputs(likelihoods.net, image_set, lambda output: (likelihoods.scores(output),))
        array: npt.NDArray[np.float32] = scores.numpy()
        return array

    def probabilities_and_features(self, images: ImageSet) -> tuple[Tensor, Tensor]:
        """The probability of every class (N, classes), and the pooled features (N, channels), in one pass.

        By the leading readout.
        """
        self._require_shape(images.shape)
        likelihoods = self._likelihoods(self.readouts[0])
        outputs = self._inference.outputs(
            likelihoods.net, images, lambda out: (likelihoods.scores(out), out.features.pooled)
        )
        return outputs[0], outputs[1]

    def scores(self, images: ImageSet, readout: str | None = None) -> Tensor:
        """The scores of a readout before softmax, (N, classes)."""
        self._require_shape(check_type("images", images, ImageSet).shape)
        lead = self._readouts[self._named(readout)]
        return self._inference.outputs(lead.net, images, lambda output: (lead.scores(output),))[0]

    def _predicted(self, images: ImageSet, top: int, readout: str | None) -> list[Prediction]:
        name = self._named(readout)
        classes, values = self._inference.rank({name: self._likelihoods(name)}, images, top)[name]
        return [
            Prediction(tuple(self.classes[label] for label in labels), tuple(probabilities))
            for labels, probabilities in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _likelihoods(self, name: str) -> Readout:
        """The readout, its scores made probabilities: softmax of them, divided by the temperature."""
        readout, temperature = self._readouts[name], self.temperature if name == self.readouts[0] else 1.0

        def softmax(output: Output) -> Tensor:
            return (readout.scores(output) / temperature).softmax(dim=1)

        return Readout(readout.net, softmax)

    def evaluate(self, images: Any, labels: Any = None, readout: str | None = None) -> float:
        """Accuracy in percent: of an image set (a task's ``test``), or of images with class names.

        A folder with a directory per class, and a CSV, have class names of their own.
        """
        if not isinstance(images, ImageSet):
            labelled = load_labelled(images, labels, self.shape.size, self.shape.channels)
            images = known_images(labelled.images, labelled.classes, self.classes)
        elif labels is not None:
            raise UserError("an image set has labels of its own; evaluate takes it without class names")
        if not len(images):
            raise UserError("evaluate needs at least one image")
        name = self._named(readout)
        best = self.rank(images, 1, [name])[name].classes[:, 0].numpy()
        return float((best == images.labels).mean() * 100)

    def rank(self, images: ImageSet, best: int = 10, readouts: Sequence[str] | None = None) -> dict[str, Ranking]:
        """The best classes of each image, as labels, by these readouts or all; each net sees the images once."""
        self._require_shape(check_type("images", images, ImageSet).shape)
        best = check_int("best", best, TOP)
        selected = {self._named(name): self._readouts[self._named(name)] for name in readouts or self._readouts}
        return self._inference.rank(selected, images, best)

    def _named(self, readout: str | None) -> str:
        """The readout of this name; None: the leading one."""
        name = self.readouts[0] if readout is None else check_text("readout", readout)
        if name not in self._readouts:
            raise unknown_name("readout", name, self._readouts)
        return name

    def _source(self, images: Any) -> Source:
        source = load_images(images, self.shape.size, self.shape.channels)
        self._require_shape(source.shape)
        if isinstance(source, FileSource) and source is not images:
            source.hint = "predict_files takes paths of files, names such ones and answers the others"
        return source

    def _require_shape(self, shape: ImageShape) -> None:
        if shape != self.shape:
            raise UserError(f"the images are of {shape} (channels, height, width), but the model takes {self.shape}")


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
    return Predictor.from_model(model, inference)
