"""``drcil resume``: continue an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Plugin


def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")],
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
) -> None:
    """Continue an interrupted run. The result is the same as without the interruption."""
    from ..runs.run import Run
    from .training import make_plan, train

    run = Run.open(directory)
    train(run, make_plan(run.settings), json=json, quiet=quiet)
