"""``drcil resume``: continue an interrupted run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .checks import usable
from .options import Devices, Plugin, Timeout
from .output import console


def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.", callback=usable)],
    devices: Devices = None,
    timeout: Timeout = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
) -> None:
    """Continue an interrupted run. The result is the same as without the interruption."""
    from ..runs.run import Run
    from ..runs.settings import with_engine
    from ..suites.reuse import is_finished
    from .spreading import in_team, require_seen
    from .training import make_plan, print_result, train

    run = Run.open(directory)
    if is_finished(run) and not os.access(directory, os.W_OK):
        # There is nothing to write, and no need to.
        print_result(run.result(), run, console(stderr=json), json=json, quiet=quiet)
        return
    run.settings = with_engine(run.settings, devices=devices, timeout=timeout)
    with in_team(run.settings.engine) as team:
        require_seen(directory.absolute(), team)
        train(run, make_plan(run.settings), team, json=json, quiet=quiet)
