"""``drcil resume``: continue an interrupted run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .checks import usable
from .options import Plugin
from .output import console


def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.", callback=usable)],
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
) -> None:
    """Continue an interrupted run. The result is the same as without the interruption."""
    from ..runs.run import Run
    from ..suites.reuse import is_finished
    from .training import make_plan, print_result, train

    run = Run.open(directory)
    if is_finished(run) and not os.access(directory, os.W_OK):
        # There is nothing to write, and no need to.
        print_result(run.result(), run, console(stderr=json), json=json, quiet=quiet)
        return
    train(run, make_plan(run.settings), json=json, quiet=quiet)
