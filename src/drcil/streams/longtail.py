"""Long-tailed streams (Liu et al. 2022): the i-th of C classes has n · r^(−i / (C − 1)) training images, r the ratio.

Two scenarios. *Ordered*: classes come by their number, each with fewer images than the one before. *Shuffled*: the
count belongs to the class's number, and the order seed says when the class comes. Which images are kept is drawn with
numpy's seed 0, as in the published program. A class that has fewer images than its count keeps them all, so that a tail
which is steeper by nature is left as it is.

That is CIFAR-100, whose classes are all of one size. Classes of any other data are numbered by their size, largest
first, so that the tail falls from class to class there, too.

ImageNet-100 has rules of its own there. Its classes are numbered as they were drawn and come in the order of the order
seed in both scenarios; counts belong to positions (shuffled: the list of counts is, with seed 0); n is the size of the
class that comes first; images are taken in the order of their files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..data.datasets.dataset import DATASETS, Dataset, DataSpec
from ..data.datasets.imagenet import draw_order
from ..data.sources.imageset import Int64
from ..errors import UserError, shortened

RATIO = 100.0
MEMORY = "20/class"
Scenario = Literal["ordered", "shuffled"]
_TAIL = re.compile(r"(?P<dataset>.+)-lt(?P<ratio>[^-/]*)(?:-(?P<scenario>[^-/]*))?", re.DOTALL)
_RATIO = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_IMAGES: dict[str, dict[str, Any]] = {
    "cifar": {"augment": "resized", "mean": (0.5071, 0.4866, 0.4409), "std": (0.2009, 0.1984, 0.2023)},
    "imagenet": {"augment": "resized"},
}
"""What the published program does to images, by their kind."""


@dataclass(frozen=True)
class LongTail:
    """How the training images of a dataset are thinned out."""

    scenario: Scenario
    ratio: float = RATIO
    """Of the largest class to the smallest."""

    def __str__(self) -> str:
        """As in a stream's name: ``lt-shuffled``, ``lt50-ordered``."""
        if self.ratio == RATIO:
            return f"lt-{self.scenario}"
        return f"lt{int(self.ratio) if self.ratio.is_integer() else self.ratio}-{self.scenario}"

    def profile(self, largest: int, classes: int) -> Int64:
        """How many images each class has, largest first: at least one.

        >>> LongTail("ordered").profile(500, 100)[[0, 1, 2, 50, 98, 99]].tolist()
        [500, 477, 455, 48, 5, 5]
        """
        shares = [(1 / self.ratio) ** (place / max(1, classes - 1)) for place in range(classes)]
        return np.array([max(1, int(largest * share)) for share in shares], dtype=np.int64)

    def order(self, dataset: Dataset, drawn: Sequence[int]) -> tuple[int, ...]:
        """In which order the classes come, where ``drawn`` is the order seed's permutation of them."""
        if _by_position(dataset):
            return tuple(dataset.classes.index(draw_order()[number]) for number in drawn)
        return _by_size(dataset) if self.scenario == "ordered" else tuple(drawn)

    def counts(self, dataset: Dataset, order: Sequence[int]) -> Int64:
        """How many training images each class keeps, by class."""
        available = dataset.train.counts(len(dataset.classes))
        if not available.all():
            raise UserError(
                f"a long tail of '{dataset.name}' cannot be made: class '{dataset.classes[int(available.argmin())]}' "
                "has no training image left to keep; remove the class, or give it images"
            )
        by_position = _by_position(dataset)
        counts = self.profile(int(available[order[0]] if by_position else available.max()), len(order))
        if by_position and self.scenario == "shuffled":
            np.random.RandomState(0).shuffle(counts)
        ranked = order if by_position or self.scenario == "ordered" else _by_size(dataset)
        return np.minimum(counts[np.argsort(np.array(ranked))], available)

    def kept(self, dataset: Dataset, order: Sequence[int]) -> Int64:
        """The positions of the training images that are kept, class by class in the order they were chosen."""
        draws = np.random.RandomState(0)
        chosen = []
        for label, count in enumerate(self.counts(dataset, order).tolist()):
            images = np.flatnonzero(dataset.train.labels == label)
            if not _by_position(dataset):
                draws.shuffle(images)
            chosen.append(images[:count])
        return np.concatenate(chosen)


def split_tail(name: str) -> tuple[str, LongTail | None]:
    """The dataset and the long tail that a name stands for: ``cifar100-lt-shuffled``, ``folder:PATH-lt50-ordered``.

    A path may end in any word: only a number and one of the two scenarios are read as such, and not with a slash behind
    them. Elsewhere one of the two will do to see what is meant, and what is wrong with the other.
    """
    match = _TAIL.fullmatch(name)
    known: tuple[Scenario, ...] = get_args(Scenario)
    if match is None or (":" not in name and name in DATASETS):
        return name, None
    numbered, arranged = not match["ratio"].strip("0123456789."), match["scenario"] in known
    if not (numbered and arranged if ":" in name else numbered or arranged):
        return name, None
    if match["scenario"] not in known:
        raise UserError(
            f"'{shortened(name)}' must say how its long tail is arranged: "
            f"'{match['dataset']}-lt{match['ratio']}-ordered' or '-shuffled'"
            + (f", not '{match['scenario']}'" if match["scenario"] else "")
        )
    ratio = float(match["ratio"]) if _RATIO.fullmatch(match["ratio"]) else RATIO if not match["ratio"] else 0.0
    if ratio < 1:
        raise UserError(
            f"the ratio of a long tail must be a number from 1 to 999999999, such as 50 in 'lt50-{match['scenario']}', "
            f"not '{match['ratio']}'"
        )
    return match["dataset"], LongTail(known[known.index(match["scenario"])], ratio)


def long_tailed_spec(spec: DataSpec) -> DataSpec:
    """What images of this kind are like in the published setting."""
    return replace(spec, **_IMAGES.get(spec.kind, {}))


def with_first_of_task(
    dataset: Dataset, kept: Int64, held_out: Int64, order: Sequence[int], sizes: Sequence[int]
) -> Int64:
    """What the published program holds out of CIFAR-100: for each class whose share is none, an image of its task.

    That is the task's first image that is still there, by class and order of choice. No class loses its last one.
    """
    held, labels = set(held_out.tolist()), dataset.train.labels
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        task = order[end - size : end]
        images = kept[np.isin(labels[kept], task)]
        for _ in set(task) - set(labels[held_out].tolist()):
            left = [place for place in images.tolist() if place not in held]
            alone = np.bincount(labels[left], minlength=len(order)) < 2
            held.update([place for place in left if not alone[labels[place]]][:1])
    return np.array(sorted(held), dtype=np.int64)


def _by_size(dataset: Dataset) -> tuple[int, ...]:
    """The classes, largest first; those of one size by their number."""
    available = dataset.train.counts(len(dataset.classes))
    return tuple(np.argsort(-available, kind="stable").tolist())


def _by_position(dataset: Dataset) -> bool:
    """Whether it is ImageNet-100, whose counts belong to positions."""
    return dataset.name == "imagenet100" and set(dataset.classes) == set(draw_order())
