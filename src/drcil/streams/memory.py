"""Rehearsal memory: exemplars of old classes, selected by herding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..data.image_set import ImageSet, Int64, empty_like
from ..errors import UserError
from ..settings import MemoryBudget

_TIE = 1e-12
"""Herding scores closer than this are equal: above the rounding of float64, far below that of float32 features."""


def herding_order(features: Tensor, m: int) -> Tensor:
    """Positions of the m images (all, if there are fewer) whose running mean follows the class mean best.

    With x the features divided by their norm + 1e-8 and μ their mean, the k-th choice is the x not yet chosen that
    minimises ‖μ − (x + Σ chosen) / k‖; ties go to the lowest position. The result is in order of choice, so that
    every prefix of it is what a smaller m would have given.

    Multiplied by k and squared, the criterion is ‖x‖² − 2 x·(kμ − Σ chosen) plus what all x share: one
    matrix-vector product per choice. It is computed in float64 on the CPU, where rounding is far below ``_TIE``:
    equal images then tie whatever the device, the linear algebra library or the number of threads.
    """
    choices = np.empty(min(m, len(features)), dtype=np.int64)
    if not len(choices):
        return torch.from_numpy(choices)
    if torch.equal(features, features[:1].expand_as(features)) and torch.isfinite(features[0]).all():
        # All images tie at every step: the loop below would give the same result, slowly.
        return torch.arange(len(choices))
    vectors = features.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(vectors).all():
        raise UserError("exemplars cannot be chosen because some features are not finite numbers: training diverged")
    vectors = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-8)
    mean = vectors.mean(axis=0)
    squares = np.square(vectors).sum(axis=1)
    missing = np.zeros_like(mean)
    for k in range(len(choices)):
        missing += mean
        scores = squares - 2 * (vectors @ missing)
        choice = np.argmax(scores <= scores.min() + _TIE)
        choices[k] = choice
        missing -= vectors[choice]
        squares[choice] = np.inf
    return torch.from_numpy(choices)


class KeptImages:
    """Images stored beyond their task."""

    def __init__(self, recall: Callable[[], ImageSet | None] = lambda: None) -> None:
        """``recall`` loads stored images; it is called on first access."""
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

    def __init__(self, budget: MemoryBudget, recall: Callable[[], ImageSet | None] = lambda: None) -> None:
        super().__init__(recall)
        self.budget = budget

    def update(self, new: ImageSet, total_classes: int, features: Callable[[ImageSet], Tensor]) -> None:
        """Close a task: cut every old class to the quota of ``total_classes``, then choose from the new images.

        Old classes keep their first exemplars; they are never chosen again. ``features`` answers one
        row for each image; it is called once, for all new images, and not at all if no selection is needed.
        """
        old = empty_like(new) if self.images is None else self.images
        if len(old) and len(new) and new.labels.min() <= old.labels.max():
            raise ValueError(f"label {new.labels.min()} is new, but the memory has labels up to {old.labels.max()}")
        quota = self.budget.quota(total_classes)
        if quota is None:
            exemplars = new.subset(np.argsort(new.labels, kind="stable"))
        else:
            old, exemplars = first_of_each_class(old, quota), select_by_herding(new, quota, features)
        self.images = old.join(exemplars)

    def refresh(self, more: ImageSet, total_classes: int, features: Callable[[ImageSet], Tensor]) -> None:
        """Choose again for the classes of ``more`` images: from these and from the exemplars that the class has.

        Other classes keep theirs. ``features`` as in ``update``.
        """
        old = empty_like(more) if self.images is None else self.images
        is_refreshed = np.isin(old.labels, more.labels)
        candidates, quota = old.subset(is_refreshed).join(more), self.budget.quota(total_classes)
        exemplars = candidates if quota is None else select_by_herding(candidates, quota, features)
        images = old.subset(~is_refreshed).join(exemplars)
        self.images = images.subset(np.argsort(images.labels, kind="stable"))

    @property
    def rows(self) -> Int64:
        """Which images of the source are kept."""
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.rows

    @property
    def labels(self) -> Int64:
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.labels


def first_of_each_class(images: ImageSet, quota: int) -> ImageSet:
    """The first ``quota`` images of every class of a set that is sorted by label."""
    rank = np.arange(len(images)) - np.searchsorted(images.labels, images.labels)
    return images.subset(rank < quota)


def select_by_herding(images: ImageSet, quota: int, features: Callable[[ImageSet], Tensor]) -> ImageSet:
    """``quota`` images of every class, by class and in order of choice."""
    if quota == 0 or not len(images):
        return empty_like(images)
    images = images.subset(np.argsort(images.labels, kind="stable"))
    _, starts, counts = np.unique(images.labels, return_index=True, return_counts=True)
    vectors = torch.split(features(images).cpu(), counts.tolist())
    positions = [start + herding_order(rows, quota).numpy() for start, rows in zip(starts, vectors, strict=True)]
    return images.subset(np.concatenate(positions))
