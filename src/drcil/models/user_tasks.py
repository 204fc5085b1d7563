"""Turns a user's labelled images into a task: skips duplicates, holds out a validation share.

A model stores a short digest of every image with its class: of the bytes of its file, else of its pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.class_folders import LabelledImages, load_labelled
from ..data.image_set import ImageSet, Source
from ..data.user_images import infer_data_spec
from ..nets.backbone import preprocessing_of
from ..seeding import derive_seed
from ..settings import MemoryBudget, ModelSettings
from ..streams.stream import Task, known_images, next_task
from .exemplars import digests
from .model import Model
from .usage import UInt64


def drop_duplicates(images: ImageSet) -> ImageSet:
    """The images without duplicates within a class, so that no training image is also held out."""
    pairs = np.stack([images.labels.astype(np.uint64), image_digests(images)], axis=1)
    first = np.sort(np.unique(pairs, axis=0, return_index=True)[1])
    if len(first) < len(images):
        warnings.warn(
            f"copies of other images of the same class are left out: {len(images) - len(first)}", stacklevel=5
        )
    return images.subset(first)


def drop_known(images: ImageSet, model: Model) -> ImageSet:
    """The images without those that a model has learnt as the same class."""
    pairs = model.digests.pairs()
    # Exemplars of a stream have no digests in the model.
    for stored in (model.memory.images, model.held.images):
        if stored:
            pairs |= set(zip(stored.labels.tolist(), image_digests(stored).tolist(), strict=True))
    is_new = [pair not in pairs for pair in zip(images.labels.tolist(), image_digests(images).tolist(), strict=True)]
    return images.subset(np.array(is_new, dtype=np.bool_))


def image_digests(images: ImageSet) -> UInt64:
    """The first 8 bytes of the digest of each image: enough to distinguish a million images."""
    return np.ascontiguousarray(digests(images, embedded=True)[:, :8]).view(np.uint64)[:, 0]


def user_task(images: Any, labels: Any, model: Model | None, settings: ModelSettings, validation: float) -> Task:
    """The images as the task that follows those of the model, or as a first one for a model with these settings.

    A share for ``validation`` is held out of training.
    """
    labelled = _load(images, labels, model, settings)
    _warn_of(labelled.skipped)
    spec = model.data if model else infer_data_spec(labelled.images.source)
    unique = drop_duplicates(labelled.images) if validation else labelled.images
    is_held_out = held_out(unique, labelled.classes, validation, settings.seed)
    sizes, budget = model.sizes if model else (), MemoryBudget.parse(spec.memory)
    task = next_task(unique.subset(~is_held_out), labelled.classes, sizes, budget, spec)
    held_images = unique.subset(is_held_out)
    return replace(task, validation=held_images.relabel(held_images.labels + task.old) if len(held_images) else None)


@dataclass(frozen=True)
class RefreshImages:
    """More images of classes that a model knows, with the model's labels."""

    train: ImageSet
    validation: ImageSet | None
    """Held out of training."""

    def class_names(self, classes: Sequence[str]) -> tuple[str, ...]:
        """The names of their classes, if these are the names by label."""
        return tuple(classes[label] for label in np.unique(self.train.labels).tolist())


def refresh_images(images: Any, labels: Any, model: Model, validation: float) -> RefreshImages:
    """The images of known classes that the model neither learnt from nor holds out."""
    labelled = load_labelled(images, labels, model.shape.size, model.shape.channels)
    _warn_of(labelled.skipped)
    new = known_images(labelled.images, labelled.classes, model.classes)
    new = drop_known(new, model)
    new = drop_duplicates(new) if validation else new
    is_held_out = held_out(new, model.classes, validation, model.seed)
    return RefreshImages(new.subset(~is_held_out), new.subset(is_held_out) if is_held_out.any() else None)


def _warn_of(skipped: Sequence[str]) -> None:
    if skipped:
        suffix = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        warnings.warn(f"{skipped[0]}{suffix} cannot be read as an image and is left out", stacklevel=5)


def _load(images: Any, labels: Any, model: Model | None, settings: ModelSettings) -> LabelledImages:
    """The images in the size of the model or the settings, else of the backbone or the first image."""
    if model:
        return load_labelled(images, labels, model.shape.size, model.shape.channels)
    labelled = load_labelled(images, labels, settings.image_size)
    size = settings.image_size or _image_size(settings.backbone, labelled.images.source)
    return labelled if size == labelled.images.shape.size else load_labelled(images, labels, size)


def _image_size(backbone: str | None, first: Source) -> int:
    """Side length in pixels: for photographs that of the backbone's preprocessing, else that of the images."""
    preprocessing = preprocessing_of(backbone) if backbone is not None and infer_data_spec(first).photographs else None
    return first.size if preprocessing is None else preprocessing.image_size


HELD_FROM = 20
"""Images that a class must have for some to be held out."""


def held_out(images: ImageSet, classes: tuple[str, ...], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """A mask of the held-out images: this share of every class with enough images, seeded by its name."""
    selected = np.zeros(len(images), dtype=np.bool_)
    for label, name in enumerate(classes):
        rows = np.flatnonzero(images.labels == label)
        if len(rows) >= HELD_FROM:
            order = np.random.default_rng(derive_seed(seed, "held out", name)).permutation(len(rows))
            selected[rows[order[: round(share * len(rows))]]] = True
    return selected
