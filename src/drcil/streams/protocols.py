"""Protocols: how a dataset is cut into tasks, in which class order, with which memory. Names and settings only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arguments import string, whole
from ..data.datasets.dataset import DATASETS, DataSpec, find_dataset
from ..errors import UserError, shortened
from ..limits import ORDER_SEED as ORDER_SEEDS
from .longtail import MEMORY, LongTail, split_tail

ORDER_SEED = 1993
"""Of the class order, unless another is asked for."""
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
    """Of these two one is given; the other is 0 and follows from the dataset."""
    tail: LongTail | None = None
    """How the training images are thinned out; None: all are used."""

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
        sizes = [self.base or step]
        while sum(sizes) + step < classes:
            sizes.append(step)
        if sum(sizes) < classes:
            sizes.append(classes - sum(sizes))
        return tuple(sizes)

    def large_base(self, classes: int) -> bool:
        """Whether it begins with more classes than a step brings. Equal tasks do not, even if the last is smaller."""
        return self.base > (self.step_size or self._step_size(classes - self.base))

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
    ``cifar100-50/10`` (50 classes, then ten at a time), ``folder:PATH-b0-4``; long-tailed,
    ``cifar100-lt-shuffled-b50-5``, ``cifar100-lt50-ordered-b50-5``."""
    match = _NAME.fullmatch(string("the stream", name))
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
    return tuple(np.random.RandomState(whole("the order seed", seed, ORDER_SEEDS)).permutation(classes).tolist())


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
        for cut in dataset.cuts:
            settings = parse_stream(f"{dataset.form}-{cut}")
            tasks, memory = len(settings.sizes(classes)), protocol_memory(settings, classes, dataset.spec)
            streams.append(StandardStream(f"{dataset.form}-{cut}", classes, tasks, memory, _words(settings, classes)))
    return streams


def _words(settings: StreamSettings, classes: int) -> str:
    """How a stream is cut; where the name is long, with little room."""
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
