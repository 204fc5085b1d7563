"""Teaching a model the classes of a folder: those that it does not know yet, and more of those that it knows.

The model is a directory with versions. It is the old one until the new one is written, and then it is the new one. What
is learnt meanwhile is kept beside it, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..data.labelled import Labelled, named_images
from ..disk import leftovers, remove_directory
from ..errors import UserError
from ..learner import Learner
from ..models.directory import model_at, read_model, write_model
from ..models.model import Model
from ..models.own_task import More
from ..models.state import LEARNING, STATE
from ..models.versions import LOCK, VERSIONS, add_version, changing, current_version, is_versioned
from ..reading import is_file
from ..train import EngineSettings, Journal, Listener
from ..train.events import Event
from .card import write_card

Known = Literal["refuse", "skip", "refresh"]
Showing = Callable[[Sequence[Sequence[int]]], AbstractContextManager[Listener]]
"""Makes a listener for work that was planned: image-epochs by task and stage."""


@dataclass(frozen=True)
class Lesson:
    """The model as it is now, and what is new to it: perhaps nothing."""

    model: Model
    new: tuple[str, ...]
    refreshed: tuple[str, ...]
    """Known classes of which it learnt more."""
    found: Labelled
    """What it was taught from."""


def learn(
    path: Path,
    place: Path,
    make: Callable[[Listener, Journal], Learner],
    engine: EngineSettings,
    *,
    validation: float,
    known: Known,
    showing: Showing,
    origin: Model | None = None,
    options: Mapping[str, Any] | None = None,
    settling: Callable[[], object] = lambda: None,
) -> Lesson:
    """Teach the model at a path, which ``make`` makes if there is none, what a folder or a CSV has that is new to it.

    ``origin``: a model that is taught in its place, and stays what it is where it was read from.
    ``options``: what ``make`` and ``origin`` depend on; what was stopped under others is begun anew.
    ``settling`` is called when all is learnt, before the model becomes what it learnt.
    Known classes are refreshed after the new ones were learnt: balancing then sees all classes, and has the last word.
    """
    _require_apart(path, place)
    _require_place(path)
    new_place = not os.path.lexists(path)
    with changing(path), _leaving_nothing(path) if new_place else nullcontext():
        model = read_model(path) if is_versioned(path) else origin
        view = (model.shape.size, model.shape.channels) if model else (None, None)
        found = _considered(model.classes if model else (), named_images(place, None, *view), place, known)
        chosen = {**(options or {}), "validation": validation}
        journal = Journal(path / LEARNING / _digest(path, found, chosen), engine.snapshot_seconds)
        _forget_others(path, journal)
        relay = _Relay()
        learner = Learner.of(model, engine, relay, journal) if model else make(relay, journal)
        new, old = _apart(found, learner.classes)
        task = learner.own_task(*_files(new), validation) if new.classes else None
        more = _more(learner, old, validation) if old.classes else None
        if task is None and more is None:
            assert model is not None
            return Lesson(model, (), (), found)
        with showing(learner.planned(task, more)) as listener:
            relay.listener = listener
            if task is not None:
                learner.learn(task)
            if more is not None:
                learner.refresh(more)
        settling()
        add_version(path, lambda directory: write_version(learner, directory))
        remove_directory(path / LEARNING)
    return Lesson(learner.model, new.classes, more.classes(learner.classes) if more else (), found)


@contextmanager
def _leaving_nothing(path: Path) -> Iterator[None]:
    """A directory that was made for a model goes again if nothing came of it, before another process may enter it."""
    try:
        yield
    finally:
        with suppress(OSError):
            if set(os.listdir(path)) <= {LOCK}:
                (path / LOCK).unlink()
                # Not with all that is in it: without the lock another process may have begun here already.
                path.rmdir()


def is_kept(path: Path) -> bool:
    """Whether there is something of a lesson that was stopped, to go on with."""
    return any((path / LEARNING).glob("*/*.safetensors"))


class _Relay:
    """Passes events on to whoever listens by then."""

    listener: Listener | None = None

    def __call__(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)


def _require_apart(path: Path, place: Path) -> None:
    """Images that are there, and a model that is not among them: every directory beside them is taken for a class."""
    if not os.path.lexists(place):
        raise UserError(f"there is no folder and no CSV file {place}")
    if os.path.isdir(place) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(place)):
        raise UserError(f"{path} would lie within {place}, whose directories are classes; choose another place for it")


def _require_place(path: Path) -> None:
    """A model with versions, or nothing: what else is there stays as it is."""
    if is_versioned(path) or not os.path.lexists(path):
        return
    ours = {LEARNING, LOCK, VERSIONS, *(left.name for left in leftovers(path))}
    others = sorted(set(os.listdir(path)) - ours) if os.path.isdir(path) else [path.name]
    if others and is_file(model_at(path) / STATE):
        raise UserError(
            f"{path} is a run or a saved model, which stays as it is; 'drcil learn NEW FOLDER --from {path}' makes a "
            "model of it that can be taught"
        )
    if others:
        raise UserError(
            f"{path} exists and is not a model that can be taught: it contains '{others[0]}'; choose another path"
        )


def _considered(learnt: Sequence[str], found: Labelled, place: Path, known: Known) -> Labelled:
    """What is to be learnt: all of it, or what is not among the classes learnt."""
    old = [name for name in found.classes if name in learnt]
    if old and known == "refuse":
        more = f" and {len(old) - 1} more of its classes" if len(old) > 1 else ""
        raise UserError(
            f"the model knows '{old[0]}'{more} of {place} already; --known skip leaves known classes out, and "
            "--known refresh learns more of them"
        )
    return found if known == "refresh" else _apart(found, learnt)[0]


def _apart(found: Labelled, learnt: Sequence[str]) -> tuple[Labelled, Labelled]:
    """The images of classes that are not among those learnt, and of those that are."""
    known = [name for name in found.classes if name in learnt]
    return _of(found, [name for name in found.classes if name not in known]), _of(found, known)


def _of(found: Labelled, classes: Sequence[str]) -> Labelled:
    """The images of some classes."""
    numbers = np.array([classes.index(name) if name in classes else -1 for name in found.classes], dtype=np.int64)
    labels = numbers[found.images.labels]
    return found._replace(images=found.images.relabel(labels).subset(labels >= 0), classes=tuple(classes))


def _files(found: Labelled) -> tuple[list[str], list[str]]:
    """Path and class name of each image."""
    paths = [found.images.source.name(row) for row in found.images.rows.tolist()]
    return paths, [found.classes[label] for label in found.images.labels.tolist()]


def _more(learner: Learner, old: Labelled, validation: float) -> More | None:
    """More images of known classes, if some of them are new."""
    learner.model.require_refreshable()
    more = learner.more_images(*_files(old), validation)
    return more if len(more.images) else None


def _digest(path: Path, found: Labelled, options: Mapping[str, Any]) -> str:
    """Of what is to be learnt, of the version that learns it, and of the options that say how."""
    digest = hashlib.blake2b(digest_size=12)
    version = current_version(path).name if is_versioned(path) else ""
    digest.update(f"{version}\0{json.dumps(options, sort_keys=True, default=str)}".encode())
    for file, name in zip(*_files(found), strict=True):
        status = os.stat(file)
        digest.update(f"\0{file}\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _forget_others(path: Path, journal: Journal) -> None:
    """What was begun with other images or options, and given up."""
    if os.path.isdir(path / LEARNING):
        for one in (path / LEARNING).iterdir():
            if journal.directory is None or one.name != journal.directory.name:
                remove_directory(one)


def write_version(learner: Learner, directory: Path) -> None:
    """All that a version is: the model with the images it needs, and its card."""
    write_model(learner.model, directory, carry=True)
    write_card(learner.model, directory)
