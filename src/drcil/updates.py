"""Updates a stored model from a folder or CSV file: learn, refresh, rename, forget, undo.

The model is a directory with versions. A change writes a new version, which then becomes the current one. Snapshots of
unfinished work are stored beside the versions, so the same command resumes after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .data.class_folders import LabelledImages, load_labelled
from .data.file_source import directory_names
from .errors import UserError
from .files import remove_files, share_file, stale_temporary_files
from .learner import Learner
from .models.exemplars import EXEMPLARS
from .models.model import Model
from .models.model_card import write_card
from .models.model_directory import read_model, require_complete, write_model
from .models.model_format import LEARNING, STATE, exemplar_files, read_state, write_state
from .models.store import (
    CURRENT,
    LOCK,
    VERSIONS,
    add_version,
    current_version,
    is_versioned,
    lock_store,
    model_at,
    purge,
    require_store,
)
from .models.store import undo as use_earlier
from .models.user_tasks import RefreshImages
from .train import EngineSettings, Listener, SnapshotStore
from .train.events import Event
from .train.snapshots import remove_snapshots

_DIGEST = re.compile("[0-9a-f]{24}")
Known = Literal["refuse", "skip", "refresh"]
Showing = Callable[[Sequence[Sequence[int]]], AbstractContextManager[Listener]]
"""Makes a listener for planned work: image-epochs by task and stage."""


@dataclass(frozen=True)
class LearnResult:
    """The updated model and what it learnt, which may be nothing."""

    model: Model
    new: tuple[str, ...]
    refreshed: tuple[str, ...]
    """Known classes that it learnt more images of."""
    source: LabelledImages
    """The images of the folder or CSV file."""


def learn_folder(
    path: Path,
    source: Path,
    make: Callable[[Listener, SnapshotStore], Learner],
    engine: EngineSettings,
    *,
    validation: float,
    known: Known,
    showing: Showing,
    origin: Model | None = None,
    options: Mapping[str, Any] | None = None,
    settling: Callable[[], object] = lambda: None,
) -> LearnResult:
    """Teach the model at a path what is new in a folder or a CSV file. ``make`` creates the model if there is none.

    ``origin``: the model that a new one starts from; it is not changed.
    ``options``: what ``make`` and ``origin`` depend on. Work that was interrupted with other options is not resumed.
    ``settling`` is called after training, before the new version is written.
    Known classes are refreshed after new ones are learnt, so that balancing comes last and sees all classes.
    """
    _require_apart(path, source)
    _require_usable(path)
    is_new = not os.path.lexists(path)
    with lock_store(path), _removing_if_empty(path) if is_new else nullcontext():
        model = read_model(path) if is_versioned(path) else origin
        view = (model.shape.size, model.shape.channels) if model else (None, None)
        labelled = _images_to_learn(model.classes if model else (), load_labelled(source, None, *view), source, known)
        settings = {**(options or {}), "validation": validation}
        digest = _digest(path, labelled, settings)
        journal = SnapshotStore(path / LEARNING / digest, engine.snapshot_seconds, root=path)
        remove_learning(path, but=digest)
        relay = _Relay()
        learner = Learner.from_model(model, engine, relay, journal) if model else make(relay, journal)
        new, old = _split(labelled, learner.classes)
        task = learner.user_task(new._replace(skipped=()), validation=validation) if new.classes else None
        refresh = _refresh_images(learner, old, validation) if old.classes else None
        if task is None and refresh is None:
            assert model is not None
            return LearnResult(model, (), (), labelled)
        with showing(learner.planned(task, refresh)) as listener:
            relay.listener = listener
            if task is not None:
                learner.learn(task)
            if refresh is not None:
                learner.refresh(refresh)
        settling()
        add_version(path, lambda directory: write_version(learner, directory))
        remove_learning(path)
    return LearnResult(learner.model, new.classes, refresh.class_names(learner.classes) if refresh else (), labelled)


@contextmanager
def _removing_if_empty(path: Path) -> Iterator[None]:
    """After the block, remove the directory of a model if nothing was stored in it, while it is still locked."""
    try:
        yield
    finally:
        with suppress(OSError):
            if set(os.listdir(path)) <= {LOCK}:
                (path / LOCK).unlink()
                # Only an empty directory: without the lock another process may already be writing here.
                path.rmdir()


class _Relay:
    """Passes events to a listener that is set later."""

    listener: Listener | None = None

    def __call__(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)


def _require_apart(path: Path, source: Path) -> None:
    """Check that the images exist and the model is outside their folder, whose directories are classes."""
    if not os.path.lexists(source):
        raise UserError(f"there is no folder and no CSV file {source}")
    if os.path.isdir(source) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(source)):
        raise UserError(f"{path} would lie within {source}, whose directories are classes; choose another place for it")


def _require_usable(path: Path) -> None:
    """Check that a path is a model with versions or does not exist. Anything else is left untouched."""
    if is_versioned(path) or not os.path.lexists(path):
        return
    expected = {LEARNING, LOCK, VERSIONS, *(file.name for file in stale_temporary_files(path, CURRENT.__eq__))}
    unexpected = sorted(set(os.listdir(path)) - expected) if os.path.isdir(path) else [path.name]
    if unexpected and os.path.isfile(model_at(path) / STATE):
        raise UserError(
            f"{path} is a run or a saved model, which stays as it is; 'drcil learn NEW FOLDER --from {path}' makes a "
            "model of it that can be taught"
        )
    if unexpected:
        raise UserError(
            f"{path} exists and is not a model that can be taught: it contains '{unexpected[0]}'; choose another path"
        )


def _images_to_learn(learnt: Sequence[str], labelled: LabelledImages, source: Path, known: Known) -> LabelledImages:
    """The images to learn: all of them, or those of new classes."""
    old = [name for name in labelled.classes if name in learnt]
    if old and known == "refuse":
        suffix = f" and {len(old) - 1} more of its classes" if len(old) > 1 else ""
        raise UserError(
            f"the model knows '{old[0]}'{suffix} of {source} already; --known skip leaves known classes out, and "
            "--known refresh learns more of them"
        )
    return labelled if known == "refresh" else _split(labelled, learnt)[0]


def _split(labelled: LabelledImages, learnt: Sequence[str]) -> tuple[LabelledImages, LabelledImages]:
    """The images of new classes and those of learnt ones."""
    old = [name for name in labelled.classes if name in learnt]
    return _select_classes(labelled, [name for name in labelled.classes if name not in old]), _select_classes(
        labelled, old
    )


def _select_classes(labelled: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """The images of some classes."""
    numbers = np.array([classes.index(name) if name in classes else -1 for name in labelled.classes], dtype=np.int64)
    labels = numbers[labelled.images.labels]
    return labelled._replace(images=labelled.images.relabel(labels).subset(labels >= 0), classes=tuple(classes))


def _refresh_images(learner: Learner, old: LabelledImages, validation: float) -> RefreshImages | None:
    """The new images of known classes; None if there are none."""
    learner.model.require_refreshable()
    refresh = learner.refresh_images(old._replace(skipped=()), validation=validation)
    return refresh if len(refresh.train) else None


def _digest(path: Path, labelled: LabelledImages, options: Mapping[str, Any]) -> str:
    """A digest of the images to learn, the current version and the options."""
    digest = hashlib.blake2b(digest_size=12)
    version = current_version(path).name if is_versioned(path) else ""
    digest.update(f"{version}\0{json.dumps(options, sort_keys=True, default=str)}".encode())
    for position, label in enumerate(labelled.images.labels.tolist()):
        file, name = labelled.images.name(position), labelled.classes[label]
        status = os.stat(file)
        digest.update(f"\0{file}\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def remove_learning(path: Path, but: str | None = None) -> None:
    """Remove the snapshots of abandoned updates; ``but``: the digest of one to keep."""
    if os.path.isdir(path / LEARNING):
        for name in directory_names(path / LEARNING):
            if _DIGEST.fullmatch(name) and name != but:
                remove_snapshots(path / LEARNING / name, root=path)
        remove_files(path / LEARNING, lambda name: False, root=path)


def write_version(learner: Learner, directory: Path) -> None:
    """Write the files of a version: the model with the images it needs, and its card."""
    write_model(learner.model, directory, copy_exemplars=True)
    write_card(learner.model, directory)


def rename(path: Path, old: str, new: str) -> None:
    """Rename a class of the model."""
    require_store(path)
    with lock_store(path):
        learner = Learner.from_model(read_model(path))
        learner.rename(old, new)
        previous = current_version(path)

        def fill(directory: Path) -> None:
            write_renamed(learner.model, previous, directory)
            write_card(learner.model, directory)

        add_version(path, fill)


def forget(path: Path, classes: Sequence[str], *, purged: bool = False) -> tuple[str, ...]:
    """Let the model forget classes; returns the remaining ones.

    ``purged``: also remove its older versions, and the names of forgotten classes from its history.
    """
    require_store(path)
    with lock_store(path):
        learner = Learner.from_model(read_model(path))
        if classes:
            learner.forget(classes)
        model = learner.model
        if purged and model.usage is not None:
            model.usage = model.usage.hide_forgotten(model.classes)
        add_version(path, lambda directory: write_version(learner, directory))
        if purged:
            purge(path)
            remove_learning(path)
        return learner.classes


def undo(path: Path) -> tuple[str, ...]:
    """Restore the previous version; returns its classes."""

    def read(earlier: Path) -> tuple[str, ...]:
        require_complete(earlier)
        return read_state(earlier).classes

    require_store(path)
    with lock_store(path):
        return use_earlier(path, read)


def write_renamed(model: Model, previous: Path, directory: Path) -> None:
    """Write a model that differs from the one in ``previous`` by its names alone; the files are shared."""
    state = read_state(previous)
    for name in state.files:
        share_file(previous / name, directory)
    for picture in (previous / EXEMPLARS / name for name in exemplar_files(state)):
        if os.path.isfile(picture):
            share_file(picture, directory / EXEMPLARS)
    write_state(directory, state.model_copy(update={"classes": model.classes, "usage": model.usage}))
