"""Changes of a model on disk that teach it nothing: other names, and the way back."""

from __future__ import annotations

from pathlib import Path

from ..learner import Learner
from ..models.directory import read_model
from ..models.versions import add_version, changing, require_kept
from ..models.versions import undo as earlier
from .learn import write_version


def rename(path: Path, old: str, new: str) -> None:
    """Call a class of the model by another name."""
    require_kept(path)
    with changing(path):
        learner = Learner.of(read_model(path))
        learner.rename(old, new)
        add_version(path, lambda directory: write_version(learner, directory))


def undo(path: Path) -> tuple[str, ...]:
    """Go back to the model before its last change; the classes that it knows then."""
    require_kept(path)
    with changing(path):
        earlier(path)
        return read_model(path).classes
