"""Exports a model as one file: chooses the format, writes, compares with the predictor, measures speed."""

from __future__ import annotations

import importlib.util
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch

from ..data.decoding import Pixels, decode_full
from ..data.file_source import PictureSource
from ..data.image_set import ImageSet
from ..errors import FaultError, UserError, WrongTypeError, check_choice, check_path, format_value, optional, shortened
from ..files import atomic_file
from ..inference import Inference
from ..models.model import Model
from ..models.model_directory import read_model
from ..models.predictor import Predictor
from ..seeding import numpy_generator
from .classifier import Classifier, Predict, describe, folded_readout, leading_readout, predict_arrays, unfolded_readout

if TYPE_CHECKING:
    from ..learner import Learner


Quantization = Literal["int8"]


@dataclass(frozen=True)
class Format:
    """A kind of file. Its module, which is imported when it is needed, has ``write_KIND`` and ``open_KIND``."""

    module: str
    kind: str
    suffix: str
    runtime: str
    packages: tuple[str, ...] = ()
    """Packages of the extra ``export`` that it needs."""

    def write(self, model: Model, path: Path) -> None:
        """Write the model, folded, as one file."""
        getattr(self._import(), f"write_{self.kind}")(model, path)

    def open(self, path: Path) -> Predict:
        """An exported file, ready for use."""
        predict: Predict = getattr(self._import(), f"open_{self.kind}")(path)
        return predict

    def _import(self) -> Any:
        return import_module(f".{self.module}", __package__)


FORMATS = {
    "onnx": Format("onnx_format", "onnx", ".onnx", "onnxruntime", ("onnx", "onnxscript", "onnxruntime")),
    "torch": Format("torch_formats", "program", ".pt2", "torch.export"),
    "safetensors": Format("torch_formats", "weights", ".safetensors", "torch"),
}


def check_export(path: Path, format: str | None, quantize: str | None) -> str:
    """The name of the format: ``format``, or by the suffix of the file. Raises an error if it cannot be exported."""
    format = _format_name(path, format)
    optional(check_choice, "quantize", quantize, get_args(Quantization))
    if quantize and format != "onnx":
        raise UserError(f"'{quantize}' is for ONNX files, and the format is '{format}'; give format 'onnx', or omit it")
    if os.path.lexists(path):
        raise UserError(f"{path} already exists; choose another file, or remove it first")
    missing = [name for name in FORMATS[format].packages if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"the format '{format}' needs {', '.join(missing)}, which {verb} not installed; install with "
            f"pip install 'drcil[export]'"
        )
    return format


def _format_name(path: Path, format: str | None) -> str:
    by_suffix = next((name for name, export_format in FORMATS.items() if export_format.suffix == path.suffix), None)
    if format is not None:
        if by_suffix not in (None, check_choice("format", format, FORMATS)):
            raise UserError(
                f"'{path.name}' ends like the format '{by_suffix}', but the format is '{format}'; choose one"
            )
        return format
    if by_suffix is None:
        suffixes = ", ".join(export_format.suffix for export_format in FORMATS.values())
        raise UserError(f"'{path.name}' has no known suffix; give a format, or a name that ends in {suffixes}")
    return by_suffix


_MAX_IMAGES, _MAX_BYTES = 64, 2**28
"""Limits on the model's images that a file is compared on: decoded photographs are large."""
MAX_DIFFERENCE = 1e-4
"""By how much a probability may differ from the predictor's."""


class Comparison(NamedTuple):
    """Probabilities of an exported file beside those of the predictor."""

    difference: float
    """The largest difference of any probability."""
    agreement: float
    """The share of images with the same best class."""


def compare(predict: Predict, images: Sequence[Pixels], expected: npt.NDArray[np.float32]) -> Comparison:
    """Images of the same size are predicted together, so that batches of several sizes are tried too."""
    probabilities = np.empty_like(expected)
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, image in enumerate(images):
        by_shape[image.shape].append(index)
    for indices in by_shape.values():
        probabilities[indices] = predict(np.stack([images[index] for index in indices]))
    same = probabilities.argmax(axis=1) == expected.argmax(axis=1)
    # A NaN counts as an infinite difference.
    return Comparison(float(np.nan_to_num(np.abs(probabilities - expected), nan=np.inf).max()), float(same.mean()))


def _model_images(model: Model) -> list[Pixels]:
    """Some held-out images, else exemplars, (H, W, C) as they are decoded; none if the model has none."""
    try:
        images = model.held.images or model.memory.images
    except UserError:  # Their files are gone, and predicting does not need them.
        return []
    if not images:
        return []
    count = min(_MAX_IMAGES, len(images))
    indices = np.unique(np.linspace(0, len(images) - 1, count).round().astype(np.int64))
    decoded: list[Pixels] = []
    for position in indices.tolist():
        decoded.append(_decode(images, position))
        if sum(image.nbytes for image in decoded) > _MAX_BYTES:
            break
    return decoded


def _decode(images: ImageSet, position: int) -> Pixels:
    source = images.sources[images.source_index[position]]
    if isinstance(source, PictureSource):
        with source.picture(int(images.rows[position])) as picture:
            return decode_full(picture, source.mode)
    return np.ascontiguousarray(images.read(slice(position, position + 1))[0].permute(1, 2, 0).numpy())


def _synthetic_images(size: int, channels: int) -> list[Pixels]:
    """Noise: of the net's size, smaller, larger, wide, tall and very tall."""
    generator, small = numpy_generator("export", size), size // 2 + 1
    shapes = [(size, size), (small, small + 1), (2 * size + 1, size + 3), (size + 2, 3 * size + 1), (5 * size, small)]
    return [generator.integers(0, 256, (*shape, channels), dtype=np.uint8) for shape in shapes]


@dataclass(frozen=True)
class Exported:
    """An exported file, and how it agrees with drcil's predictions."""

    file: Path
    format: str
    size: int
    """In bytes."""
    images: int
    """Number of images it was compared on."""
    model_images: int
    """How many of these are the model's: held-out images or exemplars. The others are synthetic."""
    difference: float
    """The largest difference of any probability, before quantisation."""
    quantized_difference: float | None = None
    """The same after quantisation."""
    agreement: float | None = None
    """The share of images with the same best class after quantisation."""


def export(
    model: str | os.PathLike[str] | Learner | Model,
    file: str | os.PathLike[str],
    format: str | None = None,
    quantize: str | None = None,
) -> Exported:
    """Write a model, given by its path or as a learner, as one file.

    The file takes uint8 images (N, H, W, C) of any height and width, and returns probabilities.
    ``format``: ``"onnx"``, ``"torch"`` (a program of ``torch.export``) or ``"safetensors"``; None: by the suffix of the
    file.
    ``quantize``: ``"int8"`` for eight bits, in ONNX.
    """
    model = _load(model)
    path = check_path("the file to export to", file).absolute()
    format = check_export(path, format, quantize)
    leading_readout(model)
    images = _model_images(model)
    model_images = len(images)
    images += _synthetic_images(model.shape.size, model.shape.channels)
    inference = Inference(torch.device("cpu"), model.data.mean, model.data.std, workers=0)
    expected = Predictor.from_model(model, inference).probabilities(images)
    with atomic_file(path) as temporary:
        plain = temporary.with_name(f"{temporary.name}.plain") if quantize else temporary
        FORMATS[format].write(model, plain)
        try:
            difference = compare(FORMATS[format].open(plain), images, expected).difference
        except Exception as error:  # A runtime may fail in any way.
            reason = shortened(" ".join(str(error).split()))
            raise FaultError(f"the exported file does not run, so nothing was written: {reason}") from error
        if not difference <= MAX_DIFFERENCE:
            raise FaultError(
                f"the exported file would differ from drcil's predictions by {difference:.2g}, and at most "
                f"{MAX_DIFFERENCE:g} is accepted; nothing was written"
            )
        exported = Exported(path, format, 0, len(images), model_images, difference)
        if quantize:
            from .onnx_format import quantise

            # Every second image of the model calibrates; the others show what was lost.
            quantise(plain, temporary, images[:model_images:2])
            compared_rows = slice(1, model_images, 2) if model_images > 1 else slice(None)
            after = compare(FORMATS[format].open(temporary), images[compared_rows], expected[compared_rows])
            exported = replace(exported, quantized_difference=after.difference, agreement=after.agreement)
        return replace(exported, size=temporary.stat().st_size)


def _load(model: str | os.PathLike[str] | Learner | Model) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return read_model(check_path("the path of a model", model))
    from ..learner import Learner

    if not isinstance(model, Learner):
        raise WrongTypeError(f"the model to export must be a path or a learner, not {format_value(model)}")
    return model.model


BATCH_SIZES = (1, 32)
_SECONDS, _MIN_TRIALS = 0.5, 3
"""The least duration of a measurement, and the least number of trials of which it is the median."""


class Speed(NamedTuple):
    """Size and speed of one form of the net."""

    form: str
    size: int
    """Bytes of its tensors, or of the file."""
    milliseconds: tuple[float, ...]
    """For each batch size, with images of the net's size."""


def measure_speed(model: Model, exported: Exported) -> list[Speed]:
    """The net as trained, folded, and the exported file."""
    about, speeds = describe(model), []
    readouts = (("as trained, in torch", unfolded_readout(model)), ("folded, in torch", folded_readout(model)))
    for form, readout in readouts:
        classifier = Classifier(readout, about)
        size = sum(tensor.numel() * tensor.element_size() for tensor in classifier.state_dict().values())
        speeds.append(Speed(form, size, _milliseconds(predict_arrays(classifier), model)))
    format = FORMATS[exported.format]
    file = Speed(f"the file, in {format.runtime}", exported.size, _milliseconds(format.open(exported.file), model))
    return [*speeds, file]


def _milliseconds(predict: Predict, model: Model) -> tuple[float, ...]:
    size, channels = model.shape.size, model.shape.channels
    medians = []
    for batch_size in BATCH_SIZES:
        images = numpy_generator("speed").integers(0, 256, (batch_size, size, size, channels), dtype="uint8")
        predict(images)
        trials: list[float] = []
        while len(trials) < _MIN_TRIALS or sum(trials) < _SECONDS:
            start = time.perf_counter()
            predict(images)
            trials.append(time.perf_counter() - start)
        medians.append(1000 * median(trials))
    return tuple(medians)
