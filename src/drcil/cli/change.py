"""``drcil rename`` and ``drcil undo``: changes of a model that teach it nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .checks import usable
from .options import Plugin
from .output import console

Kept = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that 'drcil learn' has made.", callback=usable)]


def rename(
    model: Kept,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The class as it is called.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What it is to be called.")],
    plugin: Plugin = None,
) -> None:
    """Call a class by another name."""
    from ..teaching.change import rename as change

    change(model, old, new)
    console().print(f"{model}: '{old}' is now '{new}'", markup=False, soft_wrap=True)


def undo(model: Kept, plugin: Plugin = None) -> None:
    """Go back to the model before its last change."""
    from ..teaching.change import undo as change

    classes = change(model)
    console().print(f"{model} is as it was before; it knows {len(classes)} classes", markup=False, soft_wrap=True)
