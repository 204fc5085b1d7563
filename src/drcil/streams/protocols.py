"""Names of streams: base and step sizes, class orders, long tails.

Two scenarios. *Ordered*: classes come by their number, each with fewer images than the one before. *Shuffled*: the
count belongs to the class's number, and the order seed says when the class comes. Which images are kept is drawn with
numpy's seed 0, as in the published program. A class that has fewer images than its count keeps them all, so that a tail
which is steeper by nature is left as it is.

That is CIFAR-100, whose classes are all of one size. Classes of any other data are numbered by their size, largest
first, so that the tail falls from class to class there, too.

ImageNet-100 has special rules. Its classes are numbered as they were drawn and come in the order of the order
seed in both scenarios; counts belong to positions (shuffled: the list of counts is, with seed 0); n is the size of the
class that comes first; images are taken in the order of their files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ..data.dataset import DATASETS, Dataset, DataSpec, find_dataset
from ..data.image_set import Int64, by_class
from ..errors import UserError, check_int, check_string, shortened
from ..settings import ORDER_SEED as ORDER_SEEDS

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
    """Subsampling of the training images of a dataset to a long tail."""

    scenario: Scenario
    ratio: float = RATIO
    """Of the largest class to the smallest."""

    def __str__(self) -> str:
        """As in a stream's name: ``lt-shuffled``, ``lt50-ordered``."""
        if self.ratio == RATIO:
            return f"lt-{self.scenario}"
        return f"lt{int(self.ratio) if self.ratio.is_integer() else self.ratio}-{self.scenario}"

    def profile(self, largest: int, classes: int) -> Int64:
        """The number of images of each class, largest first: at least one.

        >>> LongTail("ordered").profile(500, 100)[[0, 1, 2, 50, 98, 99]].tolist()
        [500, 477, 455, 48, 5, 5]
        """
        shares = [(1 / self.ratio) ** (rank / max(1, classes - 1)) for rank in range(classes)]
        return np.array([max(1, int(largest * share)) for share in shares], dtype=np.int64)

    def order(self, dataset: Dataset, drawn: Sequence[int]) -> tuple[int, ...]:
        """In which order the classes come, where ``drawn`` is the order seed's permutation of them."""
        names = _drawn_classes(dataset)
        if names:
            labels = {name: label for label, name in enumerate(dataset.classes)}
            return tuple(labels[names[number]] for number in drawn)
        return _by_size(dataset) if self.scenario == "ordered" else tuple(drawn)

    def counts(self, dataset: Dataset, order: Sequence[int]) -> Int64:
        """The number of training images used of each class, by class."""
        available = dataset.train.counts(len(dataset.classes))
        if not available.all():
            raise UserError(
                f"a long tail of '{dataset.name}' cannot be made: class '{dataset.classes[int(available.argmin())]}' "
                "has no training image left to keep; remove the class, or give it images"
            )
        by_position = bool(_drawn_classes(dataset))
        counts = self.profile(int(available[order[0]] if by_position else available.max()), len(order))
        if by_position and self.scenario == "shuffled":
            np.random.RandomState(0).shuffle(counts)
        ranked = order if by_position or self.scenario == "ordered" else _by_size(dataset)
        return np.minimum(counts[np.argsort(np.array(ranked))], available)

    def used_positions(self, dataset: Dataset, order: Sequence[int]) -> Int64:
        """The positions of the training images that are used, class by class in the order of selection."""
        draws = np.random.RandomState(0)
        in_file_order = bool(_drawn_classes(dataset))
        selected = []
        positions = by_class(dataset.train.labels, len(dataset.classes))
        for images, count in zip(positions, self.counts(dataset, order).tolist(), strict=True):
            if not in_file_order:
                draws.shuffle(images)
            selected.append(images[:count])
        return np.concatenate(selected)


def split_tail(name: str) -> tuple[str, LongTail | None]:
    """The dataset and the long tail that a name stands for: ``cifar100-lt-shuffled``, ``folder:PATH-lt50-ordered``.

    A path may end in any word: only a number and one of the two scenarios are read as such, and not with a slash behind
    them. Elsewhere one of the two is enough to recognise a long tail and to report what is wrong with the other.
    """
    match = _TAIL.fullmatch(name)
    scenarios: tuple[Scenario, ...] = get_args(Scenario)
    if match is None or (":" not in name and name in DATASETS):
        return name, None
    numbered, arranged = not match["ratio"].strip("0123456789."), match["scenario"] in scenarios
    if not (numbered and arranged if ":" in name else numbered or arranged):
        return name, None
    if match["scenario"] not in scenarios:
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
    return match["dataset"], LongTail(scenarios[scenarios.index(match["scenario"])], ratio)


def long_tailed_spec(spec: DataSpec) -> DataSpec:
    """What images of this kind are like in the published setting."""
    return replace(spec, **_IMAGES.get(spec.kind, {}))


def hold_out_like_published(
    dataset: Dataset, used: Int64, held_out: Int64, order: Sequence[int], sizes: Sequence[int]
) -> Int64:
    """What the published program holds out of CIFAR-100: for each class whose share is none, an image of its task.

    That is the task's first image that is still there, by class and order of choice. No class loses its last one.
    """
    positions, labels = set(held_out.tolist()), dataset.train.labels
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        task = order[end - size : end]
        images = used[np.isin(labels[used], task)]
        for _ in set(task) - set(labels[held_out].tolist()):
            remaining = [position for position in images.tolist() if position not in positions]
            is_last = np.bincount(labels[remaining], minlength=len(order)) < 2
            positions.update([position for position in remaining if not is_last[labels[position]]][:1])
    return np.array(sorted(positions), dtype=np.int64)


def _by_size(dataset: Dataset) -> tuple[int, ...]:
    """The classes, largest first; those of one size by their number."""
    available = dataset.train.counts(len(dataset.classes))
    return tuple(np.argsort(-available, kind="stable").tolist())


def _drawn_classes(dataset: Dataset) -> tuple[str, ...]:
    """The classes in the order in which they were drawn, if counts belong to positions in it; else nothing."""
    names = DATASETS[dataset.name].drawn_classes if dataset.name in DATASETS else ()
    return names if set(names) == set(dataset.classes) else ()


ORDER_SEED = 1993
"""The default seed of the class order."""
_NAME = re.compile(
    r"(?P<dataset>.+)-(?:b(?P<first>0|[1-9][0-9]{0,8})-(?P<steps>[1-9][0-9]{0,8})"
    r"|(?P<base>[1-9][0-9]{0,8})/(?P<step_size>[1-9][0-9]{0,8}))",
    re.DOTALL,
)


@dataclass(frozen=True)
class StreamSettings:
    """How a dataset is cut: a base of classes, then steps, given by their number or by their size."""

    dataset: str
    base: int
    """Classes of the first task; 0: as many as in the other tasks, and it counts as a step."""
    steps: int = 0
    step_size: int = 0
    """One of these two is set; the other is 0 and follows from the dataset."""
    tail: LongTail | None = None
    """Subsampling of the training images; None: all are used."""

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.step_size > 0) or self.base < (self.step_size > 0):
            raise ValueError(f"{self} must have a number of steps, or a step size and a base")

    def sizes(self, classes: int) -> tuple[int, ...]:
        """The number of classes of each task, for a dataset of this many classes."""
        if self.base > classes or (self.steps and self.base == classes):
            raise UserError(
                f"stream '{stream_name(self)}' starts with {self.base} classes, but the dataset has only {classes}: "
                "choose a smaller base, or 'b0' for tasks of equal size"
            )
        step = self.step_size or self._step_size(classes - self.base)
        first = self.base or step
        steps, rest = divmod(classes - first, step)
        return (first, *[step] * steps, *([rest] if rest else []))

    def large_base(self, classes: int) -> bool:
        """Whether it begins with more classes than a step brings. Equal tasks do not, even if the last is smaller."""
        return self.base > (self.step_size or self._step_size(classes - self.base))

    def _step_size(self, classes: int) -> int:
        """⌈classes / steps⌉, provided that steps of this size are as many as were asked for."""
        size = -(-classes // self.steps)
        if -(-classes // size) != self.steps:
            possible = {-(-classes // size) for size in range(1, classes + 1)}
            nearest = sorted(sorted(possible, key=lambda steps: abs(steps - self.steps))[:6])
            raise UserError(
                f"stream '{stream_name(self)}' cannot be made: {classes} classes do not divide into {self.steps} steps "
                f"of equal size (only the last may be smaller); near it, these work: {', '.join(map(str, nearest))}"
            )
        return size


def parse_stream(name: str) -> StreamSettings:
    """The settings behind a name: ``cifar100-b0-10`` (ten tasks), ``cifar100-b50-5`` (50 classes, then five steps),
    ``cifar100-50/10`` (50 classes, then ten at a time), ``folder:PATH-b0-4``; long-tailed,
    ``cifar100-lt-shuffled-b50-5``, ``cifar100-lt50-ordered-b50-5``."""
    match = _NAME.fullmatch(check_string("the stream", name))
    if match is None:
        raise UserError(
            f"stream '{shortened(name)}' is not of the form DATASET-b0-TASKS, DATASET-b50-STEPS or DATASET-BASE/STEP, "
            "such as cifar100-b0-10, cifar100-b50-5, cifar100-50/10 or, long-tailed, cifar100-lt-shuffled-b50-5"
        )
    dataset, tail = split_tail(match["dataset"])
    if match["steps"]:
        return StreamSettings(dataset, base=int(match["first"]), steps=int(match["steps"]), tail=tail)
    return StreamSettings(dataset, base=int(match["base"]), step_size=int(match["step_size"]), tail=tail)


def known_tasks(name: str) -> int | None:
    """How many tasks the stream of a name has; None where that is not known before its data is loaded."""
    settings = parse_stream(name)
    classes = find_dataset(settings.dataset)[0].classes
    return None if classes is None else len(settings.sizes(classes))


def stream_name(settings: StreamSettings) -> str:
    """The name that ``parse_stream`` reads as these settings."""
    dataset = settings.dataset if settings.tail is None else f"{settings.dataset}-{settings.tail}"
    if settings.steps:
        return f"{dataset}-b{settings.base}-{settings.steps}"
    return f"{dataset}-{settings.base}/{settings.step_size}"


def class_order(classes: int, seed: int) -> tuple[int, ...]:
    """The order in which a seed presents the classes: numpy's legacy permutation, as the field's programs draw it."""
    return tuple(np.random.RandomState(check_int("the order seed", seed, ORDER_SEEDS)).permutation(classes).tolist())


class StandardStream(NamedTuple):
    """A stream of the literature, as ``drcil list streams`` shows it."""

    name: str
    classes: int
    tasks: int
    memory: str
    description: str


def standard_streams() -> list[StandardStream]:
    """The streams that the known datasets are usually cut into. No data is loaded."""
    streams = []
    for dataset in DATASETS.values():
        if (classes := dataset.classes) is None:
            continue
        for cut in dataset.protocols:
            settings = parse_stream(f"{dataset.form}-{cut}")
            tasks, memory = len(settings.sizes(classes)), protocol_memory(settings, classes, dataset.spec)
            streams.append(
                StandardStream(f"{dataset.form}-{cut}", classes, tasks, memory, _describe_split(settings, classes))
            )
    return streams


def _describe_split(settings: StreamSettings, classes: int) -> str:
    """A short description of how a stream is split into tasks."""
    sizes = settings.sizes(classes)
    if settings.large_base(classes):
        base, steps = sizes[0], len(sizes) - 1
        tail, classes_of = ("long tail; ", "") if settings.tail else ("", " classes")
        return f"{tail}{base}{classes_of}, then {steps}x{sizes[1]}"
    return f"long tail; {len(sizes)}x{sizes[0]}" if settings.tail else f"{len(sizes)} tasks of {sizes[0]} classes"


def protocol_memory(settings: StreamSettings, classes: int, spec: DataSpec) -> str:
    """The budget that belongs to a stream: long-tailed, or after a large base, protocols have one of their own."""
    if settings.tail is not None:
        return MEMORY
    return (spec.large_base_memory if settings.large_base(classes) else None) or spec.memory
