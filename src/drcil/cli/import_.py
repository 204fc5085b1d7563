"""``drcil import``: the authors' published checkpoints as models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .checks import usable
from .options import Plugin


def import_checkpoints(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT", help="The authors' .pth.tar files.", callback=usable)
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="MODEL", help="The model directory; for several checkpoints, its parent.", callback=usable
        ),
    ],
    plugin: Plugin = None,
) -> None:
    """Import the DRC authors' published CIFAR-100 checkpoints as models.

    Of several, each becomes MODEL/taskNN, by the task it was written after.
    """
    from ..models.checkpoint import import_all

    for model in import_all(checkpoints, out):
        print(model)
