"""Streams and their tasks; a user's images as the next task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from ..data.dataset import DATASETS, Dataset, DataSpec
from ..data.image_set import ImageSet, ImageShape, Int64, by_class, empty_like
from ..data.user_images import class_number
from ..errors import (
    Bounds,
    UserError,
    WrongTypeError,
    check_int,
    check_number,
    check_path,
    check_text,
    check_type,
    format_value,
    optional,
    unknown_name,
)
from ..seeding import numpy_generator
from ..settings import VALIDATION, MemoryBudget
from .protocols import ORDER_SEED, class_order, hold_out_like_published, long_tailed_spec, parse_stream, protocol_memory


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
    """The exemplars of old classes at the task's start. A stream leaves it empty; the learner fills it."""
    budget: MemoryBudget
    spec: DataSpec
    """What kind of images these are."""
    stream: str | None = None
    """The name of the stream; None for a user's images."""
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
        budget: MemoryBudget,
        held_out: Int64,
        large_base: bool = False,
        used_rows: Int64 | None = None,
    ) -> None:
        """Positions in the training images: ``held_out`` for validation, ``used_rows`` for any use (None: all)."""
        self.name = name
        self.dataset = dataset
        self.order = tuple(order)
        self.sizes = tuple(sizes)
        self.classes = tuple(dataset.classes[label] for label in order)
        self.budget = budget
        self.large_base = large_base
        is_held_out = np.zeros(len(dataset.train), dtype=np.bool_)
        is_held_out[held_out] = True
        is_used = np.zeros_like(is_held_out)
        is_used[slice(None) if used_rows is None else used_rows] = True
        self._train = _in_order(dataset.train.subset(is_used & ~is_held_out), self.order)
        self._validation = _in_order(dataset.train.subset(is_held_out), self.order)
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
        number = check_int(f"the task of stream '{self.name}'", number, Bounds(1, len(self)))
        sizes = self.sizes[:number]
        old, total = sum(sizes[:-1]), sum(sizes)
        new = _select_labels(self._train, old, total)
        return Task(
            number=number,
            classes=self.classes[old:total],
            sizes=sizes,
            new=new,
            test=_select_labels(self._test, 0, total),
            validation=_select_labels(self._validation, old, total) or None,
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
        return _select_labels(self._validation, 0, sum(self.sizes[:tasks]))


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
    share = check_number("validation", validation, VALIDATION)
    if dataset is None:
        from ..data.dataset import load_dataset

        dataset = load_dataset(settings.dataset, optional(check_path, "data_dir", data_dir), image_size)
    check_type("dataset", dataset, Dataset)
    classes = len(dataset.classes)
    sizes = settings.sizes(classes)
    resolved_order = class_order(classes, order_seed)
    if settings.tail is not None:
        dataset = replace(dataset, spec=long_tailed_spec(dataset.spec))
        resolved_order = settings.tail.order(dataset, resolved_order)
    if order is not None:
        resolved_order = _resolve_order(order, dataset.classes)
    used_rows = (
        np.arange(len(dataset.train))
        if settings.tail is None
        else settings.tail.used_positions(dataset, resolved_order)
    )
    held_out = _held_out(dataset, used_rows, share, order_seed)
    if settings.tail is not None and share and dataset.name in DATASETS and DATASETS[dataset.name].holds_out_by_task:
        held_out = hold_out_like_published(dataset, used_rows, held_out, resolved_order, sizes)
    return Stream(
        name,
        dataset,
        order=resolved_order,
        sizes=sizes,
        budget=MemoryBudget.parse(protocol_memory(settings, classes, dataset.spec) if memory is None else memory),
        held_out=held_out,
        large_base=settings.large_base(classes),
        used_rows=used_rows,
    )


def _resolve_order(order: Sequence[int | str], classes: tuple[str, ...]) -> tuple[int, ...]:
    """Class numbers from a mixture of numbers and names that must have every class once."""
    numbers = {name: number for number, name in enumerate(classes)}
    entries = order.tolist() if isinstance(order, np.ndarray) else order
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise WrongTypeError(f"the class order must be a list of class numbers or names, not {format_value(order)}")
    for entry in entries:
        if isinstance(entry, str) and entry not in numbers:
            raise unknown_name("class", entry, classes)
    labels = [
        numbers[entry] if isinstance(entry, str) else class_number(entry, "a class in the order") for entry in entries
    ]
    times = Counter(labels)
    for label in (*range(len(classes)), *labels):
        if times[label] != 1 or label not in range(len(classes)):
            raise UserError(
                f"the class order must have every class (0 to {len(classes) - 1}, or their names) exactly once, and "
                f"nothing else; it has class {label} {times[label]} times"
            )
    return tuple(labels)


def _held_out(dataset: Dataset, used_rows: Int64, share: float, seed: int) -> Int64:
    """Positions of the validation images: this share of the used images of every class, rounded half to even.

    They are keyed by class and seed. A class always keeps a training image; one that is too small gives none.
    """
    selected, labels = [np.zeros(0, dtype=np.int64)], dataset.train.labels[used_rows]
    for label, positions in enumerate(by_class(labels, len(dataset.classes)) if share else ()):
        images = np.sort(used_rows[positions])
        count = min(round(len(images) * share), max(0, len(images) - 1))
        selected.append(numpy_generator("validation", seed, label).permutation(images)[:count])
    held_out = np.concatenate(selected)
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


def _select_labels(images: ImageSet, first: int, end: int) -> ImageSet:
    """The images with labels first..end-1 of a set that is sorted by label."""
    start, stop = np.searchsorted(images.labels, [first, end])
    return images.subset(np.arange(start, stop))


def require_next(task: Task, sizes: Sequence[int], learnt_classes: Sequence[str], shape: ImageShape) -> None:
    """The task must follow those of ``sizes``, with classes not in ``learnt_classes``, in images of this shape."""
    if task.number != len(sizes) + 1:
        raise UserError(f"the next task to learn is number {len(sizes) + 1}, not {task.number}")
    if task.sizes[:-1] != tuple(sizes):
        raise UserError(
            f"the task is of a stream whose earlier tasks have {_listed(task.sizes[:-1])} classes, but the learner has "
            f"learnt tasks of {_listed(sizes)}"
        )
    _require_names(task.classes)
    repeated = sorted(set(task.classes) & set(learnt_classes))
    if repeated:
        raise UserError(f"class '{repeated[0]}' has already been learnt; a task brings classes that are new")
    task_shape = task.new.shape
    if str(task_shape) != str(shape):
        raise UserError(
            f"the task has images of {task_shape} (channels, height, width), but the learner was made for {shape}"
        )


def next_task(
    images: ImageSet, classes: Sequence[str], sizes: Sequence[int], budget: MemoryBudget, spec: DataSpec
) -> Task:
    """The task that follows those of ``sizes``. It has no test images.

    ``images``: labelled by position among the ``classes``, which are new.
    """
    new = images.relabel(images.labels + sum(sizes))
    return Task(
        number=len(sizes) + 1,
        classes=tuple(classes),
        sizes=(*sizes, len(classes)),
        new=new,
        test=empty_like(new),
        validation=None,
        memory=empty_like(new),
        budget=budget,
        spec=spec,
    )


def known_images(images: ImageSet, classes: Sequence[str], learnt_classes: Sequence[str]) -> ImageSet:
    """Images that are labelled by position among these classes, labelled among ``learnt_classes`` instead."""
    unknown = sorted(set(classes) - set(learnt_classes))
    if unknown:
        raise UserError(f"class '{unknown[0]}' has not been learnt; known: {', '.join(learnt_classes)}")
    numbers = {name: number for number, name in enumerate(learnt_classes)}
    return images.relabel(np.array([numbers[name] for name in classes], dtype=np.int64)[images.labels])


def _require_names(classes: Sequence[str]) -> None:
    """Names with which a model can be saved."""
    for name in classes:
        check_text("class name", name)
    twice = [name for name, times in Counter(classes).items() if times > 1]
    if twice:
        raise UserError(f"two classes are called '{twice[0]}'; every class needs a name of its own")


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


@dataclass(frozen=True)
class TaskImages:
    """The numbers of images of a task, by class in the stream's order."""

    number: int
    memory: Int64
    """Exemplars of each old class."""
    new: Int64
    """Training images of each new class."""

    @property
    def ratio(self) -> float:
        """Of the class with most images to the one with fewest, of those that have any."""
        counts = np.concatenate([self.memory, self.new])
        return float(counts.max() / counts[counts > 0].min())


def task_images(stream: Stream) -> list[TaskImages]:
    """For each task: after those before it, every old class has its quota in the memory, or all images it has."""
    counts, tasks, old = stream.counts(), [], 0
    for position, size in enumerate(stream.sizes, start=1):
        quota = stream.budget.quota(old) if old else 0
        exemplars = counts[:old] if quota is None else counts[:old].clip(max=quota)
        tasks.append(TaskImages(position, exemplars, counts[old : old + size]))
        old += size
    return tasks
