"""Forgetting classes: nothing that is kept of them stays, and the scores of all others stay what they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.sources.imageset import ImageSet, Int64, copied
from ..errors import UserError, unknown
from ..heads.base import remaining
from .lessons import is_passing
from .model import Model


def forget_classes(model: Model, names: Sequence[str]) -> None:
    """Let go of classes by name. The others close up: their labels are again 0, 1, … in the same order.

    Layers that all classes share stay as they are, with what they learnt from images of these classes.
    """
    for name in names:
        if name not in model.classes:
            raise unknown("class", name, model.classes)
    kept = [label for label, name in enumerate(model.classes) if name not in names]
    if not kept:
        raise UserError("a model knows at least one class; delete it rather than let it forget all of them")
    if len(kept) == len(model.classes):
        raise UserError(f"no class to forget was named; the model knows {', '.join(model.classes)}")
    numbers = np.full(len(model.classes), -1, dtype=np.int64)
    numbers[kept] = np.arange(len(kept))
    images = [keeper.images and _left(keeper.images, numbers) for keeper in (model.memory, model.held)]
    model.method.forget({label for label, number in enumerate(numbers.tolist()) if number < 0})
    model.memory.images, model.held.images = images
    model.sizes, model.classes = tuple(remaining(model.sizes, kept)), tuple(model.classes[label] for label in kept)
    usage = model.usage
    if usage is not None:
        model.usage = usage.model_copy(
            update={
                name: tuple(told[label] for label in kept)
                for name in ("images", "held", "accuracy", "seen")
                if (told := getattr(usage, name))
            }
        )


def _left(images: ImageSet, numbers: Int64) -> ImageSet:
    """What is left of images whose labels become these numbers, or are gone (-1)."""
    labels = numbers[images.labels]
    return copied(images.relabel(labels).subset(labels >= 0), is_passing)
