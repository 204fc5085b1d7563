"""The rehearsal memory: how many images of old classes may be kept, and which ones are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..data.sources.imageset import ImageSet, Int64, Source, empty_like
from ..errors import UserError
from .budget import Budget
from .herding import herd


class KeptImages:
    """Images that outlive their task."""

    def __init__(self, recall: Callable[[], ImageSet | None] = lambda: None) -> None:
        """``recall`` finds images that were kept before; it is called when they are first asked for."""
        self._recall: Callable[[], ImageSet | None] | None = recall
        self._images: ImageSet | None = None

    @property
    def images(self) -> ImageSet | None:
        """None until a task has been learnt."""
        if self._recall is not None:
            self._images = self._recall()
            self._recall = None
        return self._images

    @images.setter
    def images(self, images: ImageSet | None) -> None:
        self._images, self._recall = images, None


class Memory(KeptImages):
    """The exemplars kept so far, by class and within a class in order of choice."""

    def __init__(self, budget: Budget, recall: Callable[[], ImageSet | None] = lambda: None) -> None:
        super().__init__(recall)
        self.budget = budget

    def update(self, new: ImageSet, total_classes: int, features: Callable[[ImageSet], Tensor]) -> None:
        """Close a task: cut every old class to the quota of ``total_classes``, then choose from the new images.

        Old classes keep their first exemplars; they are never chosen again. ``features`` answers one
        row for each image it is given; it is asked once, for all new images, and not at all where no choice is made.
        """
        old = empty_like(new) if self.images is None else self.images
        if len(old) and len(new) and new.labels.min() <= old.labels.max():
            raise ValueError(f"label {new.labels.min()} is new, but the memory has labels up to {old.labels.max()}")
        quota = self.budget.quota(total_classes)
        if quota is None:
            chosen = new.subset(np.argsort(new.labels, kind="stable"))
        else:
            old, chosen = first_of_each_class(old, quota), herded(new, quota, features)
        self.images = old.join(chosen)

    def refresh(self, more: ImageSet, total_classes: int, features: Callable[[ImageSet], Tensor]) -> None:
        """Choose again for the classes of ``more`` images: from these and from the exemplars that the class has.

        Other classes keep theirs. ``features`` as in ``update``.
        """
        old = empty_like(more) if self.images is None else self.images
        again = np.isin(old.labels, more.labels)
        candidates, quota = old.subset(again).join(more), self.budget.quota(total_classes)
        chosen = candidates if quota is None else herded(candidates, quota, features)
        images = old.subset(~again).join(chosen)
        self.images = images.subset(np.argsort(images.labels, kind="stable"))

    @property
    def rows(self) -> Int64:
        """Which images of the source are kept."""
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.rows

    @property
    def labels(self) -> Int64:
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.labels


def exemplars(source: Source, rows: Int64, labels: Int64) -> ImageSet:
    """The images of a source that a memory's ``rows`` and ``labels`` say, if the source can be the one they mean."""
    if len(rows) != len(labels) or (np.diff(labels) < 0).any():
        raise UserError(
            f"a memory has {len(rows)} images with {len(labels)} labels, but it takes one of each, sorted by label"
        )
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(source):
        raise UserError(
            f"the memory refers to images {rows.min()} to {rows.max()}, but the data has {len(source)} images: "
            "it is not the data this memory was made from"
        )
    return ImageSet(source, rows.astype(np.int64), labels.astype(np.int64))


def first_of_each_class(images: ImageSet, quota: int) -> ImageSet:
    """The first ``quota`` images of every class of a set that is sorted by label."""
    rank = np.arange(len(images)) - np.searchsorted(images.labels, images.labels)
    return images.subset(rank < quota)


def herded(images: ImageSet, quota: int, features: Callable[[ImageSet], Tensor]) -> ImageSet:
    """``quota`` images of every class, by class and in order of choice."""
    if quota == 0 or not len(images):
        return empty_like(images)
    images = images.subset(np.argsort(images.labels, kind="stable"))
    _, starts, counts = np.unique(images.labels, return_index=True, return_counts=True)
    vectors = torch.split(features(images).cpu(), counts.tolist())
    chosen = [start + herd(own, quota).numpy() for start, own in zip(starts, vectors, strict=True)]
    return images.subset(np.concatenate(chosen))
