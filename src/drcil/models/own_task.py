"""A user's own images as the next task of a model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.labelled import Labelled, named_images
from ..data.own import own_spec
from ..data.sources.imageset import ImageSet, Source
from ..nets.features import preprocessing_of
from ..streams.budget import Budget
from ..streams.next_task import known_images, next_task
from ..streams.stream import Task
from .holding import held_out
from .model import Model, ModelOptions
from .seen import first_ones, unseen


def own_task(
    images: Any, labels: Any, model: Model | None, options: ModelOptions, image_size: int | None, validation: float
) -> Task:
    """The images as the task that follows those of the model, or as a first one for a model with these options.

    A share for ``validation`` is held out of training.
    """
    found = _found(images, labels, model, options, image_size)
    _warn_of(found.skipped)
    spec = model.data if model else own_spec(found.images.source)
    given = _once(found.images) if validation else found.images
    held = held_out(given, found.classes, validation, options.seed)
    sizes, budget = model.sizes if model else (), Budget.parse(spec.memory)
    task = next_task(given.subset(~held), found.classes, sizes, budget, spec)
    aside = given.subset(held)
    return replace(task, validation=aside.relabel(aside.labels + task.old) if len(aside) else None)


@dataclass(frozen=True)
class More:
    """More images of classes that a model knows, labelled as it has them."""

    images: ImageSet
    held: ImageSet | None
    """Those that are held out of training."""

    def classes(self, known: Sequence[str]) -> tuple[str, ...]:
        """The names of their classes, of those that are known."""
        return tuple(known[label] for label in np.unique(self.images.labels).tolist())


def more_images(images: Any, labels: Any, model: Model, validation: float) -> More:
    """What is new of these images of known classes: what they were not learnt from, and is not held out already."""
    found = named_images(images, labels, model.shape.size, model.shape.channels)
    _warn_of(found.skipped)
    given = known_images(found.images, found.classes, model.classes)
    given = given.subset(unseen(given, model))
    given = _once(given) if validation else given
    held = held_out(given, model.classes, validation, model.seed)
    aside = given.subset(held)
    return More(given.subset(~held), aside if len(aside) else None)


def _warn_of(skipped: Sequence[str]) -> None:
    if skipped:
        more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        warnings.warn(f"{skipped[0]}{more} cannot be read as an image and is left out", stacklevel=5)


def _once(images: ImageSet) -> ImageSet:
    """Without copies of other images of the same class: what is learnt from must not be what is measured by."""
    first = first_ones(images)
    copies = len(images) - int(first.sum())
    if copies:
        warnings.warn(f"copies of other images of the same class are left out: {copies}", stacklevel=5)
    return images.subset(first)


def _found(images: Any, labels: Any, model: Model | None, options: ModelOptions, size: int | None) -> Labelled:
    """In the size that the model has, that was asked for, or that the backbone or the first image wants."""
    if model:
        return named_images(images, labels, model.shape.size, model.shape.channels)
    found = named_images(images, labels, size)
    if size is None and (wanted := _wanted_size(options.backbone, found.images.source)) != found.images.source.size:
        return named_images(images, labels, wanted)
    return found


def _wanted_size(backbone: str | None, first: Source) -> int:
    """Of a side: what the backbone wants of photographs, if it says so; other images keep their own."""
    wanted = preprocessing_of(backbone) if backbone is not None and own_spec(first).photographs else None
    return first.size if wanted is None else wanted.image_size
