"""``drcil import``: the authors' published checkpoints as models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_checkpoints(
    checkpoints: Annotated[list[Path], typer.Argument(metavar="CHECKPOINT", help="The authors' .pth.tar files.")],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="Of one checkpoint the model; of several its parent.")],
) -> None:
    """Read the DRC authors' published CIFAR-100 checkpoints as models.

    One checkpoint becomes the model directory MODEL; several become MODEL/task01, MODEL/task02, … by the task that
    each file says it was written after. The paths are printed.
    """
    from ..runs.checkpoint import import_all

    for model in import_all(checkpoints, out):
        print(model)
