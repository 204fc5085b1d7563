"""``drcil.export``: a model as one file for other programs, checked before it is handed over."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import path as given_path
from ..arguments import shown
from ..disk import finished_file
from ..errors import FaultError, WrongTypeError, shortened
from ..models.directory import read_model
from ..models.model import Model
from .check import compared, images_of
from .formats import FORMATS, Quantization, require_possible
from .graph import leading

if TYPE_CHECKING:
    from ..learner import Learner

BOUND = 1e-4
"""By how much a probability may differ from drcil's own."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it agrees with drcil's own predictions."""

    file: Path
    format: str
    size: int
    """In bytes."""
    images: int
    """It was checked with."""
    own_images: int
    """Of these the model's own: held out of training, or remembered. The others were generated."""
    difference: float
    """The largest of any probability, before quantisation."""
    quantized_difference: float | None = None
    """The same after it."""
    agreement: float | None = None
    """The share of images with the same best class after quantisation."""


def export(
    model: str | os.PathLike[str] | Learner,
    file: str | os.PathLike[str],
    format: str | None = None,
    quantize: Quantization | None = None,
) -> Exported:
    """Write a model, the path of one or a learner, as one file.

    The file takes uint8 images (N, H, W, C) of any height and width, and answers with probabilities.
    ``format``: ``"onnx"``, ``"torch"`` (a program of ``torch.export``) or ``"safetensors"``; None: by the ending of the
    file's name.
    ``quantize``: ``"int8"`` for eight bits, in ONNX.
    """
    return export_model(_model(model), file, format, quantize)


def export_model(
    model: Model, file: str | os.PathLike[str], format: str | None = None, quantize: str | None = None
) -> Exported:
    """The same of a model that was read."""
    place = given_path("the file to export to", file).absolute()
    kind = require_possible(place, format, quantize)
    leading(model)
    with finished_file(place) as made:
        plain = made.with_name(f"{made.name}.plain") if quantize else made
        FORMATS[kind].write(model, plain)
        images = images_of(model)
        try:
            difference = compared(FORMATS[kind].opened(plain), images.all, images.expected).difference
        except Exception as error:  # Of a runtime that cannot do what it was given.
            why = shortened(" ".join(str(error).split()))
            raise FaultError(f"the exported file does not run, so that nothing was written: {why}") from error
        if not difference <= BOUND:
            raise FaultError(
                f"the exported file would differ from drcil's own predictions by {difference:.2g}, and at most "
                f"{BOUND:g} is accepted; nothing was written"
            )
        found = Exported(place, kind, 0, len(images.all), len(images.own), difference)
        if quantize:
            from .int8 import quantise

            # Of its own images every second calibrates, and the others tell what was lost.
            quantise(plain, made, images.own[::2])
            others = slice(1, len(images.own), 2) if len(images.own) > 1 else slice(None)
            after = compared(FORMATS[kind].opened(made), images.all[others], images.expected[others])
            found = replace(found, quantized_difference=after.difference, agreement=after.agreement)
        found = replace(found, size=made.stat().st_size)
    return found


def _model(given: str | os.PathLike[str] | Learner) -> Model:
    if isinstance(given, str | os.PathLike):
        return read_model(given_path("the path of a model", given))
    from ..learner import Learner

    if not isinstance(given, Learner):
        raise WrongTypeError(f"the model to export must be the path of one, or a learner, not {shown(given)}")
    return given.model
