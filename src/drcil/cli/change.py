"""``drcil rename``, ``drcil forget`` and ``drcil undo``: changes of a model that teach it nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
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


def forget(
    model: Kept,
    classes: Annotated[
        list[str] | None, typer.Argument(metavar="CLASS...", help="Classes that it shall not know any more.")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove older versions, which have the classes.")] = False,
    plugin: Plugin = None,
) -> None:
    """Let a model forget classes: their rows, images and statistics. The scores of all others stay the same."""
    from ..teaching.change import forget as change

    if not classes and not purge:
        raise UserError("name the classes to forget, or give --purge to remove older versions alone")
    left = change(model, classes or (), purged=purge)
    said = f"{model} knows {len(left)} class{'' if len(left) == 1 else 'es'}: {', '.join(left)}"
    older = "older versions are gone" if purge else "older versions still have what is forgotten; --purge removes them"
    console().print(f"{said}; {older}", markup=False, soft_wrap=True)


def undo(model: Kept, plugin: Plugin = None) -> None:
    """Go back to the model before its last change."""
    from ..teaching.change import undo as change

    classes = change(model)
    console().print(f"{model} is as it was before; it knows {len(classes)} classes", markup=False, soft_wrap=True)
