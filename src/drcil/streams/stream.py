"""Streams: a dataset cut into tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from ..arguments import instance, number, optional, path, shown, whole
from ..data.datasets.dataset import Dataset, DataSpec
from ..data.labels import class_number
from ..data.sources.imageset import ImageSet, Int64, by_class, empty_like
from ..errors import UserError, WrongTypeError, unknown
from ..keys import numpy_generator
from ..limits import VALIDATION, Bounds
from .budget import Budget
from .longtail import long_tailed_spec, with_first_of_task
from .protocols import ORDER_SEED, class_order, parse_stream, protocol_memory


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
    """The held-out share of the new classes' training images, if the stream has one and they have enough."""
    memory: ImageSet
    """The exemplars of old classes at the task's start. A stream leaves it empty; who learns fills it."""
    budget: Budget
    spec: DataSpec
    """What kind of images these are."""
    stream: str | None = None
    """The name of the stream; None for a user's own images."""
    large_base: bool = False
    """Whether the stream began with more classes than its other tasks bring."""

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
        self,
        name: str,
        dataset: Dataset,
        order: Sequence[int],
        sizes: Sequence[int],
        budget: Budget,
        held_out: Int64,
        large_base: bool = False,
        kept: Int64 | None = None,
    ) -> None:
        """``held_out`` and ``kept`` are positions in the training images: for validation, for any use (None: all)."""
        self.name = name
        self.dataset = dataset
        self.order = tuple(order)
        self.sizes = tuple(sizes)
        self.classes = tuple(dataset.classes[label] for label in order)
        self.budget = budget
        self.large_base = large_base
        held = np.zeros(len(dataset.train), dtype=np.bool_)
        held[held_out] = True
        used = np.zeros_like(held)
        used[slice(None) if kept is None else kept] = True
        self._train = _in_order(dataset.train.subset(used & ~held), self.order)
        self._validation = _in_order(dataset.train.subset(held), self.order)
        self._test = _in_order(dataset.test, self.order)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Task]:
        return (self.task(number) for number in range(1, len(self) + 1))

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        """``stream[0]`` is task 1; ``stream[:2]`` are tasks 1 and 2."""
        numbers = range(1, len(self) + 1)[index]
        return self.task(numbers) if isinstance(numbers, int) else [self.task(number) for number in numbers]

    def task(self, number: int) -> Task:
        """The task of this number, from 1."""
        number = whole(f"the task of stream '{self.name}'", number, Bounds(1, len(self)))
        sizes = self.sizes[:number]
        old, total = sum(sizes[:-1]), sum(sizes)
        new = _between(self._train, old, total)
        return Task(
            number=number,
            classes=self.classes[old:total],
            sizes=sizes,
            new=new,
            test=_between(self._test, 0, total),
            validation=_between(self._validation, old, total) or None,
            memory=empty_like(new),
            budget=self.budget,
            spec=self.dataset.spec,
            stream=self.name,
            large_base=self.large_base,
        )

    def counts(self) -> Int64:
        """The training images of every class, in the stream's order."""
        return self._train.counts(len(self.classes))

    def held_out(self, tasks: int | None = None) -> ImageSet:
        """The validation images of all classes that so many tasks bring (None: all); empty where there are none."""
        return _between(self._validation, 0, sum(self.sizes[:tasks]))


def make_stream(
    name: str,
    dataset: Dataset | None = None,
    *,
    data_dir: Path | None = None,
    image_size: int | None = None,
    order_seed: int = ORDER_SEED,
    order: Sequence[int | str] | None = None,
    memory: str | int | None = None,
    validation: float = 0.0,
) -> Stream:
    """The stream of this name, from the dataset of that name or from the one given in its place.

    ``order`` (class numbers or names) takes precedence over the order that ``order_seed`` draws; ``memory`` over the
    protocol's budget; ``validation`` is the share of every class's training images to hold out.
    """
    settings = parse_stream(name)
    share = number("validation", validation, VALIDATION)
    if dataset is None:
        from ..data.datasets.load import load_dataset

        dataset = load_dataset(settings.dataset, optional(path, "data_dir", data_dir), image_size)
    instance("dataset", dataset, Dataset)
    classes = len(dataset.classes)
    sizes = settings.sizes(classes)
    own = class_order(classes, order_seed)
    if settings.tail is not None:
        dataset = replace(dataset, spec=long_tailed_spec(dataset.spec))
        own = settings.tail.order(dataset, own)
    if order is not None:
        own = _given_order(order, dataset.classes)
    kept = np.arange(len(dataset.train)) if settings.tail is None else settings.tail.kept(dataset, own)
    held_out = _held_out(dataset, kept, share, order_seed)
    if settings.tail is not None and share and dataset.name == "cifar100":
        held_out = with_first_of_task(dataset, kept, held_out, own, sizes)
    return Stream(
        name,
        dataset,
        order=own,
        sizes=sizes,
        budget=Budget.parse(protocol_memory(settings, classes, dataset.spec) if memory is None else memory),
        held_out=held_out,
        large_base=settings.large_base(classes),
        kept=kept,
    )


def _given_order(order: Sequence[int | str], classes: tuple[str, ...]) -> tuple[int, ...]:
    """Class numbers from a mixture of numbers and names that must have every class once."""
    numbers = {name: number for number, name in enumerate(classes)}
    given = order.tolist() if isinstance(order, np.ndarray) else order
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise WrongTypeError(f"the class order must be a list of class numbers or names, not {shown(order)}")
    for entry in given:
        if isinstance(entry, str) and entry not in numbers:
            raise unknown("class", entry, classes)
    chosen = [
        numbers[entry] if isinstance(entry, str) else class_number(entry, "a class in the order") for entry in given
    ]
    times = Counter(chosen)
    for label in (*range(len(classes)), *chosen):
        if times[label] != 1 or label not in range(len(classes)):
            raise UserError(
                f"the class order must have every class (0 to {len(classes) - 1}, or their names) exactly once, and "
                f"nothing else; it has class {label} {times[label]} times"
            )
    return tuple(chosen)


def _held_out(dataset: Dataset, kept: Int64, share: float, seed: int) -> Int64:
    """Positions of the validation images: this share of what is kept of every class, rounded half to even.

    They are keyed by class and seed. A class always keeps a training image; one that is too small gives none.
    """
    chosen, labels = [np.zeros(0, dtype=np.int64)], dataset.train.labels[kept]
    for label, own in enumerate(by_class(labels, len(dataset.classes)) if share else ()):
        images = np.sort(kept[own])
        count = min(round(len(images) * share), max(0, len(images) - 1))
        chosen.append(numpy_generator("validation", seed, label).permutation(images)[:count])
    held_out = np.concatenate(chosen)
    if share and not len(held_out):
        most = np.bincount(labels).max()
        raise UserError(
            f"a validation share of {share} is less than one image of every class, and the largest has {most} training "
            "images: give a larger share, or 0 for no validation"
        )
    return held_out


def _in_order(images: ImageSet, order: tuple[int, ...]) -> ImageSet:
    """Labels become positions in the order, and the images are sorted by them."""
    positions = np.argsort(np.array(order))[images.labels]
    by_class = np.argsort(positions, kind="stable")
    return images.relabel(positions).subset(by_class)


def _between(images: ImageSet, first: int, end: int) -> ImageSet:
    """The images with labels first..end-1 of a set that is sorted by label."""
    start, stop = np.searchsorted(images.labels, [first, end])
    return images.subset(np.arange(start, stop))
