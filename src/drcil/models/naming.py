"""Names of classes: what a model calls the classes that it knows."""

from __future__ import annotations

from ..arguments import text
from ..errors import UserError, unknown
from .holding import change
from .model import Model


def rename_class(model: Model, old: str, new: str) -> None:
    """Call a class of a model by another name."""
    if old not in model.classes:
        raise unknown("class", old, model.classes)
    if text("the new name", new) in model.classes:
        raise UserError(f"there is a class '{new}' already; every class needs a name of its own")
    model.classes = tuple(new if name == old else name for name in model.classes)
    if model.usage is not None:
        changes = (*model.usage.changes, change("rename", (old, new), 0, 0.0))
        model.usage = model.usage.model_copy(update={"changes": changes})
