"""Changes of a model on disk that teach it nothing: other names, and the way back."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError
from ..learner import Learner
from ..models.directory import read_model
from ..models.versions import add_version, changing, is_versioned
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


def require_kept(path: Path) -> None:
    """The directory must be one that 'drcil learn' made."""
    if not is_versioned(path):
        why = "it was not made by 'drcil learn'" if os.path.isdir(path) else "there is no such directory"
        raise UserError(f"{path} is not a model that can be changed: {why}")
