"""The next task of a learner: what it must be, and how a user's own images with a class name each become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..arguments import text
from ..data.datasets.dataset import DataSpec
from ..data.sources.imageset import ImageSet, ImageShape, empty_like
from ..errors import UserError
from .budget import Budget
from .stream import Task


def require_next(task: Task, sizes: Sequence[int], known: Sequence[str], shape: ImageShape) -> None:
    """The task must follow those of ``sizes``, with classes that are not ``known`` yet, in images of this shape."""
    if task.number != len(sizes) + 1:
        raise UserError(f"the next task to learn is number {len(sizes) + 1}, not {task.number}")
    if task.sizes[:-1] != tuple(sizes):
        raise UserError(
            f"the task is of a stream whose earlier tasks have {_listed(task.sizes[:-1])} classes, but the learner has "
            f"learnt tasks of {_listed(sizes)}"
        )
    _require_names(task.classes)
    again = sorted(set(task.classes) & set(known))
    if again:
        raise UserError(f"class '{again[0]}' has already been learnt; a task brings classes that are new")
    given = ImageShape.of(task.new.source)
    if str(given) != str(shape):
        raise UserError(
            f"the task has images of {given} (channels, height, width), but the learner was made for {shape}"
        )


def next_task(images: ImageSet, classes: Sequence[str], sizes: Sequence[int], budget: Budget, spec: DataSpec) -> Task:
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


def known_images(images: ImageSet, classes: Sequence[str], known: Sequence[str]) -> ImageSet:
    """Images that are labelled by position among these classes, labelled among the ``known`` ones instead."""
    strange = sorted(set(classes) - set(known))
    if strange:
        raise UserError(f"class '{strange[0]}' has not been learnt; known: {', '.join(known)}")
    numbers = {name: number for number, name in enumerate(known)}
    return images.relabel(np.array([numbers[name] for name in classes], dtype=np.int64)[images.labels])


def _require_names(classes: Sequence[str]) -> None:
    """Names with which a model can be saved."""
    for name in classes:
        text("class name", name)
    twice = [name for name, times in Counter(classes).items() if times > 1]
    if twice:
        raise UserError(f"two classes are called '{twice[0]}'; every class needs a name of its own")


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
