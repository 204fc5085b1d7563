"""Streams: a dataset cut into tasks. Names and settings of the protocols, class orders, and the tasks themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .data.dataset import Dataset, DataSpec
from .data.imageset import ImageSet, Int64, empty_like
from .errors import UserError, unknown
from .keys import numpy_generator
from .memory import Budget

_NAME = re.compile(
    r"(?P<dataset>.+)-(?:b(?P<first>0|[1-9][0-9]*)-(?P<steps>[1-9][0-9]*)"
    r"|(?P<base>[1-9][0-9]*)/(?P<step_size>[1-9][0-9]*))",
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
    """Of these two one is given; the other is 0 and follows from the dataset."""

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.step_size > 0) or self.base < (self.step_size > 0):
            raise ValueError(f"{self} must have a number of steps, or a step size and a base")

    def sizes(self, classes: int) -> tuple[int, ...]:
        """The number of classes of each task, for a dataset of this many classes."""
        if self.base > classes or (self.steps and self.base == classes):
            raise UserError(
                f"stream '{stream_name(self)}' starts with {self.base} classes, but the dataset has {classes} in all: "
                "choose a smaller base, or 'b0' for tasks of equal size"
            )
        step = self.step_size or self._step_size(classes - self.base)
        sizes = [self.base or step]
        while sum(sizes) + step < classes:
            sizes.append(step)
        if sum(sizes) < classes:
            sizes.append(classes - sum(sizes))
        return tuple(sizes)

    def _step_size(self, classes: int) -> int:
        """⌈classes / steps⌉, provided that steps of this size are as many as were asked for."""
        possible = {-(-classes // size) for size in range(1, classes + 1)}
        if self.steps not in possible:
            nearest = sorted(sorted(possible, key=lambda steps: abs(steps - self.steps))[:6])
            raise UserError(
                f"stream '{stream_name(self)}' cannot be made: {classes} classes do not divide into {self.steps} steps "
                f"of equal size (only the last may be smaller); near it, these work: {', '.join(map(str, nearest))}"
            )
        return -(-classes // self.steps)


def parse_stream(name: str) -> StreamSettings:
    """The settings behind a name: ``cifar100-b0-10`` (ten tasks), ``cifar100-b50-5`` (50 classes, then five steps),
    ``cifar100-50/10`` (50 classes, then ten at a time), ``folder:PATH-b0-4``."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"stream '{name}' is not of the form DATASET-b0-TASKS, DATASET-b50-STEPS or DATASET-BASE/STEP, "
            "such as cifar100-b0-10, cifar100-b50-5 or cifar100-50/10"
        )
    if match["steps"]:
        return StreamSettings(match["dataset"], base=int(match["first"]), steps=int(match["steps"]))
    return StreamSettings(match["dataset"], base=int(match["base"]), step_size=int(match["step_size"]))


def stream_name(settings: StreamSettings) -> str:
    """The name that ``parse_stream`` reads as these settings."""
    if settings.steps:
        return f"{settings.dataset}-b{settings.base}-{settings.steps}"
    return f"{settings.dataset}-{settings.base}/{settings.step_size}"


def class_order(classes: int, seed: int) -> tuple[int, ...]:
    """The order in which a seed presents the classes: numpy's legacy permutation, as the field's programs draw it."""
    if not 0 <= seed < 2**32:
        raise UserError(f"order seed {seed} is not usable: give a number from 0 to {2**32 - 1}")
    return tuple(np.random.RandomState(seed).permutation(classes).tolist())


@dataclass(frozen=True)
class Task:
    """One step of a stream: new classes to learn, and what there is to learn them with.

    Labels are positions in the stream's order: the i-th new class has label ``old + i``.
    """

    number: int
    """Counted from 1."""
    classes: tuple[str, ...]
    """The names of the new classes."""
    sizes: tuple[int, ...]
    """The number of classes of every task so far, this one included."""
    new: ImageSet
    """The training images of the new classes."""
    test: ImageSet
    """The test images of all classes seen, this task's included."""
    validation: ImageSet | None
    """The held-out share of the new classes' training images, if the stream has one."""
    memory: ImageSet
    """The exemplars of old classes at the task's start. A stream leaves it empty; who learns fills it."""
    budget: Budget
    spec: DataSpec
    """What kind of images these are."""

    @property
    def old(self) -> int:
        """K: the classes before this task."""
        return sum(self.sizes[:-1])

    @property
    def total(self) -> int:
        """N: the classes seen, this task's included."""
        return sum(self.sizes)


class Stream:
    """A dataset cut into tasks, in order. Tasks share the dataset's pixels; making one copies only numbers."""

    def __init__(
        self, name: str, dataset: Dataset, order: Sequence[int], sizes: Sequence[int], budget: Budget, held_out: Int64
    ) -> None:
        """``held_out`` are the positions in the training images that are kept for validation."""
        self.name = name
        self.dataset = dataset
        self.order = tuple(order)
        self.sizes = tuple(sizes)
        self.classes = tuple(dataset.classes[label] for label in order)
        self.budget = budget
        held = np.zeros(len(dataset.train), dtype=np.bool_)
        held[held_out] = True
        self._train = _in_order(dataset.train.subset(~held), self.order)
        self._validation = _in_order(dataset.train.subset(held), self.order) if held.any() else None
        self._test = _in_order(dataset.test, self.order)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Task]:
        return (self.task(number) for number in range(1, len(self) + 1))

    def __getitem__(self, index: int) -> Task:
        """``stream[0]`` is task 1."""
        return self.task(range(1, len(self) + 1)[index])

    def task(self, number: int) -> Task:
        """The task of this number, from 1."""
        if not 1 <= number <= len(self):
            raise UserError(f"stream '{self.name}' has tasks 1 to {len(self)}; there is no task {number}")
        sizes = self.sizes[:number]
        old, total = sum(sizes[:-1]), sum(sizes)
        new = _between(self._train, old, total)
        return Task(
            number=number,
            classes=self.classes[old:total],
            sizes=sizes,
            new=new,
            test=_between(self._test, 0, total),
            validation=None if self._validation is None else _between(self._validation, old, total),
            memory=empty_like(new),
            budget=self.budget,
            spec=self.dataset.spec,
        )


def make_stream(
    name: str,
    dataset: Dataset | None = None,
    *,
    data_dir: Path | None = None,
    image_size: int | None = None,
    order_seed: int = 1993,
    order: Sequence[int | str] | None = None,
    memory: str | None = None,
    validation: float = 0.0,
) -> Stream:
    """The stream of this name, from the dataset of that name or from the one given in its place.

    ``order`` (class numbers or names) takes precedence over the order that ``order_seed`` draws; ``memory`` over the
    protocol's budget; ``validation`` is the share of every class's training images to hold out.
    """
    settings = parse_stream(name)
    if dataset is None:
        from .data.load import load_dataset

        dataset = load_dataset(settings.dataset, data_dir, image_size)
    classes = len(dataset.classes)
    sizes = settings.sizes(classes)
    return Stream(
        name,
        dataset,
        order=class_order(classes, order_seed) if order is None else _given_order(order, dataset.classes),
        sizes=sizes,
        budget=Budget.parse(memory or _protocol_memory(settings.dataset, sizes, dataset.spec.memory)),
        held_out=_held_out(dataset, validation, order_seed),
    )


class StandardStream(NamedTuple):
    """A stream of the literature, as ``drcil list streams`` shows it."""

    name: str
    classes: int
    tasks: int
    memory: str
    description: str


_CUTS = ("b0-5", "b0-10", "b0-20", "b50-5", "b50-10", "b50-25")
_STANDARD = {
    "digits": (10, "30", ("b0-5",)),
    "cifar100": (100, "2000", _CUTS),
    "imagenet100": (100, "2000", _CUTS),
    "imagenet1000": (1000, "20000", ("b0-10",)),
}
"""Classes, memory and cuts of the datasets with standard streams."""


def standard_streams() -> list[StandardStream]:
    """The streams that results are published on, and the one that needs no download. No data is loaded."""
    streams = []
    for dataset, (classes, total, cuts) in _STANDARD.items():
        for cut in cuts:
            name = f"{dataset}-{cut}"
            sizes = parse_stream(name).sizes(classes)
            text = f"{len(sizes)} tasks of {sizes[0]} classes"
            if _starts_large(sizes):
                text = f"{sizes[0]} classes, then {len(sizes) - 1} steps of {sizes[1]}"
            streams.append(StandardStream(name, classes, len(sizes), _protocol_memory(dataset, sizes, total), text))
    return streams


def _starts_large(sizes: tuple[int, ...]) -> bool:
    return len(sizes) > 1 and sizes[0] > sizes[1]


def _protocol_memory(dataset: str, sizes: tuple[int, ...], total: str) -> str:
    """The published protocols keep 20 images per class after a large base; else the dataset says.

    Digits and a user's own folder are not published benchmarks: there the dataset always says.
    """
    published = dataset != "digits" and not dataset.startswith("folder:")
    return "20/class" if published and _starts_large(sizes) else total


def _given_order(order: Sequence[int | str], classes: tuple[str, ...]) -> tuple[int, ...]:
    """Class numbers from a mixture of numbers and names that must have every class once."""
    numbers = {name: number for number, name in enumerate(classes)}
    for entry in order:
        if isinstance(entry, str) and entry not in numbers:
            raise unknown("class", entry, classes)
    chosen = [numbers[entry] if isinstance(entry, str) else int(entry) for entry in order]
    times = Counter(chosen)
    for number in (*range(len(classes)), *chosen):
        if times[number] != 1 or number not in range(len(classes)):
            raise UserError(
                f"the class order must have every class (0 to {len(classes) - 1}, or their names) exactly once, and "
                f"nothing else; it has class {number} {times[number]} times"
            )
    return tuple(chosen)


def _held_out(dataset: Dataset, share: float, seed: int) -> Int64:
    """Positions of the validation images: this share of every class, rounded half to even, keyed by class and seed."""
    if not 0 <= share < 1:
        raise UserError(f"a validation share of {share} is not usable: give a number from 0 up to, not including, 1")
    chosen = [np.zeros(0, dtype=np.int64)]
    for label, name in enumerate(dataset.classes if share else ()):
        images = np.flatnonzero(dataset.train.labels == label)
        count = round(len(images) * share)
        if not 0 < count < len(images):
            lacking = "validation" if count == 0 else "training"
            raise UserError(
                f"a validation share of {share} leaves class '{name}', which has {len(images)} training images, "
                f"without a {lacking} image: give another share, or 0 for no validation"
            )
        chosen.append(numpy_generator("validation", seed, label).permutation(images)[:count])
    return np.concatenate(chosen)


def _in_order(images: ImageSet, order: tuple[int, ...]) -> ImageSet:
    """Labels become positions in the order, and the images are sorted by them."""
    positions = np.argsort(np.array(order))[images.labels]
    by_class = np.argsort(positions, kind="stable")
    return images.relabel(positions).subset(by_class)


def _between(images: ImageSet, first: int, end: int) -> ImageSet:
    """The images with labels first..end-1 of a set that is sorted by label."""
    start, stop = np.searchsorted(images.labels, [first, end])
    return images.subset(np.arange(start, stop))
