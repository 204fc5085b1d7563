"""Changes of a model on disk that teach it nothing: other names, fewer classes, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..disk import remove_directory
from ..learner import Learner
from ..models.directory import read_model
from ..models.naming import write_renamed
from ..models.state import LEARNING
from ..models.versions import add_version, changing, current_version, purge, require_kept
from ..models.versions import undo as earlier
from .card import write_card
from .history import without_forgotten
from .learn import write_version


def rename(path: Path, old: str, new: str) -> None:
    """Call a class of the model by another name."""
    require_kept(path)
    with changing(path):
        learner = Learner.of(read_model(path))
        learner.rename(old, new)
        former = current_version(path)

        def fill(directory: Path) -> None:
            write_renamed(learner.model, former, directory)
            write_card(learner.model, directory)

        add_version(path, fill)


def forget(path: Path, classes: Sequence[str], *, purged: bool = False) -> tuple[str, ...]:
    """Let the model forget classes; the classes that it knows then.

    ``purged``: its older versions go, too, and the names of what it has forgotten go from its history.
    """
    require_kept(path)
    with changing(path):
        learner = Learner.of(read_model(path))
        if classes:
            learner.forget(classes)
        usage = learner.model.usage
        if purged and usage is not None:
            changes = without_forgotten(usage.changes, learner.classes)
            learner.model.usage = usage.model_copy(update={"changes": changes})
        add_version(path, lambda directory: write_version(learner, directory))
        if purged:
            purge(path)
            remove_directory(path / LEARNING)
        return learner.classes


def undo(path: Path) -> tuple[str, ...]:
    """Go back to the model before its last change; the classes that it knows then."""
    require_kept(path)
    with changing(path):
        earlier(path)
        return read_model(path).classes
