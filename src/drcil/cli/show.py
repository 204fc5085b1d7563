"""``drcil show``: the figures of a run, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .checks import usable
from .options import Metric, Plugin
from .output import console, print_json
from .words import require_printed


def show(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.", callback=usable)],
    readout: Annotated[str | None, typer.Option(help="Readout to show first.", show_default="the run's")] = None,
    metric: Metric = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show the figures of a run, finished or not."""
    from ..report.tables import summary_table, task_table, title
    from ..runs.result import led_by, measured_by
    from ..runs.run import Run

    run = Run.read(directory)
    result = run.result() if readout is None else led_by(run.result(), readout)
    result = measured_by(result, metric)
    if json:
        print_json(result)
    else:
        screen = console()
        screen.print(title(result), markup=False, soft_wrap=True)
        screen.print(task_table(result))
        screen.print(summary_table(result))
        if not result["complete"]:
            plugins = "".join(f" --plugin {name}" for name in run.settings.plugins)
            hint = f"not finished; continue with 'drcil resume {directory}{plugins}'"
            screen.print(hint, markup=False, soft_wrap=True)
    require_printed()
