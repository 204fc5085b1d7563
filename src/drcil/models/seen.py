"""Which images a model has seen, to learn from or to measure by: known by content, whatever it keeps of them.

Of every image a short digest is kept with its class: of the bytes of its file as it was given, else of its pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..data.sources.digests import digests
from ..data.sources.imageset import ImageSet
from .model import Model

_LENGTH = 16
"""Hexadecimal digits of a digest: too many for two of a million images to have the same by chance."""


def first_ones(images: ImageSet) -> npt.NDArray[np.bool_]:
    """Which images are not copies of one before them in the same class."""
    pairs: set[tuple[int, str]] = set()
    chosen = np.zeros(len(images), dtype=np.bool_)
    for place, pair in enumerate(zip(images.labels.tolist(), _marks(images), strict=True)):
        chosen[place] = pair not in pairs
        pairs.add(pair)
    return chosen


def unseen(images: ImageSet, model: Model) -> npt.NDArray[np.bool_]:
    """Which images of its classes a model has not seen as images of the same class."""
    seen = [set(_split(own)) for own in _by_class(model)]
    # Exemplars of a stream are recognised by what is kept of them.
    for kept in filter(None, (model.memory.images, model.held.images)):
        for label, mark in zip(kept.labels.tolist(), _marks(kept), strict=True):
            seen[label].add(mark)
    pairs = zip(images.labels.tolist(), _marks(images), strict=True)
    return np.array([mark not in seen[label] for label, mark in pairs], dtype=np.bool_)


def seen_after(model: Model, *given: ImageSet | None) -> tuple[str, ...]:
    """What a model has seen, by class, when these images were given to it: digests, one after the other."""
    seen = [dict.fromkeys(_split(own)) for own in _by_class(model)]
    for images in filter(None, given):
        for label, mark in zip(images.labels.tolist(), _marks(images), strict=True):
            seen[label][mark] = None
    return tuple("".join(own) for own in seen)


def _by_class(model: Model) -> Sequence[str]:
    """What it has seen of each class; nothing of those that its usage does not tell of."""
    told = model.usage.seen if model.usage else ()
    return (*told, *[""] * (len(model.classes) - len(told)))


def _split(marks: str) -> list[str]:
    return [marks[start : start + _LENGTH] for start in range(0, len(marks), _LENGTH)]


def _marks(images: ImageSet) -> list[str]:
    return [digest.tobytes().hex()[:_LENGTH] for digest in digests(images, embedded=True)]
