"""The rehearsal memory: how many images of old classes may be kept, and which ones are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .data.imageset import ImageSet, Int64, Source, empty_like
from .errors import UserError

_TIE = 1e-12
"""Herding scores closer than this are equal: above the rounding of float64, far below that of float32 features."""


@dataclass(frozen=True)
class Budget:
    """How many exemplars may be kept: ``total`` shared by all classes, or ``per_class``; neither means all images."""

    total: int | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.per_class is not None:
            raise ValueError("a budget is a total or a number per class, not both")
        if (self.total or 0) < 0 or (self.per_class is not None and self.per_class < 1):
            raise ValueError(f"a budget of {self.total} in total or {self.per_class} per class is too small")

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``"2000"`` (in total), ``"20/class"``, ``"all"`` (unlimited) or ``"none"`` (also ``"0"``: no memory)."""
        if text == "all":
            return cls()
        if text == "none":
            return cls(total=0)
        match = re.fullmatch(r"([0-9]+)(/class)?", text)
        if match is None or (match[2] and int(match[1]) == 0):
            raise UserError(
                f"memory '{text}' is not a budget: give a total such as '2000', a number per class such as "
                "'20/class', 'all' or 'none'"
            )
        return cls(per_class=int(match[1])) if match[2] else cls(total=int(match[1]))

    def __str__(self) -> str:
        if self.per_class is not None:
            return f"{self.per_class}/class"
        if self.total is None:
            return "all"
        return str(self.total) if self.total else "none"

    def quota(self, classes: int) -> int | None:
        """Exemplars of each class once this many (at least one) have been seen: ⌊total / classes⌋; None: all images.

        What the division leaves over stays unused.
        """
        return self.per_class if self.total is None else self.total // classes


def herd(features: Tensor, m: int) -> Tensor:
    """Positions of the m images (all, if there are fewer) whose running mean follows the class mean best.

    With x the features divided by their norm + 1e-8 and μ their mean, the k-th choice is the x not yet chosen that
    minimises ‖μ − (x + Σ chosen) / k‖; ties go to the lowest position. The result is in order of choice, so that
    every prefix of it is what a smaller m would have given.

    Multiplied by k and squared, the criterion is ‖x‖² − 2 x·(kμ − Σ chosen) plus what all x share: one
    matrix-vector product per choice. It is computed in float64 on the CPU, where rounding is far below ``_TIE``:
    equal images then tie whatever the device, the linear algebra library or the number of threads.
    """
    vectors = features.detach().to("cpu", torch.float64).numpy()
    choices = np.empty(min(m, len(vectors)), dtype=np.int64)
    if not len(choices):
        return torch.from_numpy(choices)
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


class Memory:
    """The exemplars kept so far, by class and within a class in order of choice."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.images: ImageSet | None = None
        """None until a task has been learnt."""

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
            old, chosen = first_of_each_class(old, quota), _herded(new, quota, features)
        self.images = old.join(chosen)

    @property
    def rows(self) -> Int64:
        """Which images of the source are kept; with ``labels``, what ``restore`` needs."""
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.rows

    @property
    def labels(self) -> Int64:
        return np.zeros(0, dtype=np.int64) if self.images is None else self.images.labels

    def restore(self, source: Source, rows: Int64, labels: Int64) -> None:
        """Put back what ``rows`` and ``labels`` said, given the source they referred to."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(source):
            raise UserError(
                f"the memory refers to images {rows.min()} to {rows.max()}, but the data has {len(source)} images: "
                "it is not the data this memory was made from"
            )
        self.images = ImageSet(source, rows.astype(np.int64), labels.astype(np.int64))


def first_of_each_class(images: ImageSet, quota: int) -> ImageSet:
    """The first ``quota`` images of every class of a set that is sorted by label."""
    rank = np.arange(len(images)) - np.searchsorted(images.labels, images.labels)
    return images.subset(rank < quota)


def balanced_quota(new: Int64, memory: Int64) -> int:
    """What a balanced set has of each class, from the counts of each new and each old one."""
    return int(min(memory.max(), new.min()))


def balanced_images(new: Int64, memory: Int64) -> int:
    """How many images a balanced set has, from the same counts."""
    quota = balanced_quota(new, memory)
    return int(np.minimum(memory, quota).sum()) + quota * len(new)


def _herded(images: ImageSet, quota: int, features: Callable[[ImageSet], Tensor]) -> ImageSet:
    """``quota`` images of every class, by class and in order of choice."""
    if quota == 0 or not len(images):
        return empty_like(images)
    vectors = features(images).cpu()
    of_class = [np.flatnonzero(images.labels == label) for label in np.unique(images.labels)]
    return images.subset(np.concatenate([at[herd(vectors[torch.from_numpy(at)], quota).numpy()] for at in of_class]))
