"""Names of classes: a model that calls a class otherwise is the same in all else, and needs none of its images."""

from __future__ import annotations

import os
from pathlib import Path

from ..arguments import text
from ..data.labels import normal, one_line
from ..disk import share_file
from ..errors import UserError, unknown
from .exemplars import EXEMPLARS
from .holding import change
from .model import Model
from .state import parse_state, write_state


def rename_class(model: Model, old: str, new: str) -> None:
    """Call a class of a model by another name."""
    old = old if old in model.classes else normal(old)
    if old not in model.classes:
        raise unknown("class", old, model.classes)
    new = one_line("the new name", text("the new name", new))
    if new in model.classes:
        raise UserError(f"there is a class '{new}' already; every class needs a name of its own")
    model.classes = tuple(new if name == old else name for name in model.classes)
    if model.usage is not None:
        changes = (*model.usage.changes, change("rename", (old, new), 0, 0.0))
        model.usage = model.usage.model_copy(update={"changes": changes})


def write_renamed(model: Model, former: Path, directory: Path) -> None:
    """Write a model that differs from the one in the directory ``former`` by names alone; its files are shared."""
    state = parse_state(former)
    for name in state.files:
        share_file(former / name, directory)
    if os.path.isdir(former / EXEMPLARS):
        for picture in (former / EXEMPLARS).iterdir():
            share_file(picture, directory / EXEMPLARS)
    write_state(directory, state.model_copy(update={"classes": model.classes, "usage": model.usage}), {})
