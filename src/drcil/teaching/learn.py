"""Teaching a model the classes of a folder that it does not know yet.

The model is a directory with versions. It is the old one until the new one is written, and then it is the new one. What
is learnt meanwhile is kept beside it, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..data.labelled import Labelled, named_images
from ..data.sources.imageset import ImageSet
from ..disk import remove_directory, write_bytes
from ..errors import UserError
from ..learner import Learner
from ..models.directory import read_model, write_model
from ..models.model import Model
from ..models.versions import LOCK, VERSIONS, add_version, changing, current_version, is_versioned
from ..train import EngineSettings, Journal, Listener
from ..train.events import Event
from .card import CARD, card

LEARNING = "learning"
"""Where a model keeps what it is learning."""
Known = Literal["refuse", "skip"]
Showing = Callable[[Sequence[Sequence[int]]], AbstractContextManager[Listener]]
"""Makes a listener for work that was planned: image-epochs by task and stage."""


@dataclass(frozen=True)
class Lesson:
    """The model as it is now, and what is new to it: perhaps nothing."""

    model: Model
    new: tuple[str, ...]
    skipped: tuple[str, ...]
    """Files that cannot be read as images."""


def learn(
    path: Path,
    place: Path,
    make: Callable[[Listener, Journal], Learner],
    engine: EngineSettings,
    *,
    validation: float,
    known: Known,
    showing: Showing,
) -> Lesson:
    """Teach the model at a path, which ``make`` makes if there is none, the new classes of a folder or a CSV."""
    _require_place(path)
    with _leaving_nothing(path), changing(path):
        model = read_model(path) if is_versioned(path) else None
        view = (model.shape.size, model.shape.channels) if model else (None, None)
        found = _new_classes(model.classes if model else (), named_images(place, None, *view), place, known)
        if model and not found.classes:
            return Lesson(model, (), found.skipped)
        paths = [found.images.source.name(row) for row in found.images.rows.tolist()]
        names = [found.classes[label] for label in found.images.labels.tolist()]
        journal = Journal(path / LEARNING / _digest(path, found.images, names), engine.snapshot_seconds)
        _forget_others(path, journal)
        relay = _Relay()
        learner = Learner.of(model, engine, relay, journal) if model else make(relay, journal)
        task = learner.own_task(paths, names, validation)
        work = [*([] for _ in learner.sizes), [stage.epochs * stage.images for stage in learner.forecast(task)]]
        with showing(work) as listener:
            relay.listener = listener
            learner.learn(task)
        add_version(path, lambda directory: write_version(learner, directory))
        remove_directory(path / LEARNING)
    return Lesson(learner.model, found.classes, found.skipped)


@contextmanager
def _leaving_nothing(path: Path) -> Iterator[None]:
    """A directory that was made for a model goes again if nothing came of it."""
    there = os.path.lexists(path)
    try:
        yield
    finally:
        if not there and os.path.isdir(path) and set(os.listdir(path)) <= {LOCK}:
            remove_directory(path)


class _Relay:
    """Passes events on to whoever listens by then."""

    listener: Listener | None = None

    def __call__(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)


def _require_place(path: Path) -> None:
    """A model with versions, or nothing: what else is there stays as it is."""
    if is_versioned(path) or not os.path.lexists(path):
        return
    others = sorted(set(os.listdir(path)) - {LEARNING, LOCK, VERSIONS}) if os.path.isdir(path) else [path.name]
    if others:
        raise UserError(
            f"{path} exists and is not a model that can be taught: it contains '{others[0]}'; choose another path"
        )


def _new_classes(learnt: Sequence[str], found: Labelled, place: Path, known: Known) -> Labelled:
    """What is not among the classes learnt."""
    old = [name for name in found.classes if name in learnt]
    if old and known == "refuse":
        more = f" and {len(old) - 1} more of its classes" if len(old) > 1 else ""
        raise UserError(
            f"the model knows '{old[0]}'{more} of {place} already; leave known classes out with --known skip, or give "
            "a folder of new classes"
        )
    new = tuple(name for name in found.classes if name not in old)
    numbers = np.array([new.index(name) if name in new else -1 for name in found.classes], dtype=np.int64)
    labels = numbers[found.images.labels]
    images = found.images.relabel(labels).subset(labels >= 0)
    return Labelled(images, new, found.skipped)


def _digest(path: Path, images: ImageSet, names: Sequence[str]) -> str:
    """Of what is to be learnt, and of the version that learns it."""
    digest = hashlib.blake2b(digest_size=12)
    version = current_version(path).name if is_versioned(path) else ""
    digest.update(version.encode())
    for row, name in zip(images.rows.tolist(), names, strict=True):
        file = images.source.name(row)
        status = os.stat(file)
        digest.update(f"\0{file}\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _forget_others(path: Path, journal: Journal) -> None:
    """What was begun with other images, and given up."""
    if os.path.isdir(path / LEARNING):
        for one in (path / LEARNING).iterdir():
            if journal.directory is None or one.name != journal.directory.name:
                remove_directory(one)


def write_version(learner: Learner, directory: Path) -> None:
    """All that a version is: the model with the images it needs, and its card."""
    write_model(learner.model, directory, carry=True)
    write_bytes(directory / CARD, card(learner.model).encode())
