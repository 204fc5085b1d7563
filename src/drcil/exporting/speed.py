"""How large and how fast the exported net is, beside the net as it was learnt."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

from ..keys import numpy_generator
from ..models.model import Model
from .export import Exported
from .formats import FORMATS, Answer
from .graph import Classifier, answering, description, folded, unfolded

BATCHES = (1, 32)
_SECONDS, _FEWEST = 0.5, 3
"""How long a measurement lasts, and of how many trials it is the median."""


class Speed(NamedTuple):
    """A form of the net."""

    form: str
    size: int
    """Bytes: of the numbers that it keeps, or of the file."""
    milliseconds: tuple[float, ...]
    """For each of the batches, of images that have the net's size."""


def speeds(model: Model, exported: Exported) -> list[Speed]:
    """The net as it was learnt, folded, and as the file that was exported."""
    about, found = description(model), []
    for form, readout in (("as learnt, in torch", unfolded(model)), ("folded, in torch", folded(model))):
        classifier = Classifier(readout, about)
        numbers = sum(tensor.numel() * tensor.element_size() for tensor in classifier.state_dict().values())
        found.append(Speed(form, numbers, _measured(answering(classifier), model)))
    known = FORMATS[exported.format]
    form = f"the file, in {known.runs_in}"
    return [*found, Speed(form, exported.size, _measured(known.opened(exported.file), model))]


def _measured(answer: Answer, model: Model) -> tuple[float, ...]:
    size, channels = model.shape.size, model.shape.channels
    found = []
    for batch in BATCHES:
        images = numpy_generator("speed").integers(0, 256, (batch, size, size, channels), dtype="uint8")
        answer(images)
        trials: list[float] = []
        while len(trials) < _FEWEST or sum(trials) < _SECONDS:
            started = time.perf_counter()
            answer(images)
            trials.append(time.perf_counter() - started)
        found.append(1000 * median(trials))
    return tuple(found)
