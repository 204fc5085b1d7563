"""What ``run`` and ``resume`` share: a run under way, shown, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ..errors import Interrupted
from ..report.plots import plot_curve
from ..report.progress import showing
from ..report.tables import summary_table, task_line, task_table
from ..runs.run import Run, TaskReport
from ..streams.stream import Stream
from ..train.events import silence
from .output import console, print_json

CURVE = "curve.png"


def train(run: Run, stream: Stream, work: Sequence[Sequence[int]], *, json: bool, quiet: bool) -> None:
    """Learn what is left to learn, then print the result."""
    screen = console(stderr=json)

    def after_task(report: TaskReport) -> None:
        if quiet:
            return
        result = run.result()
        if screen.is_terminal:
            screen.print(task_table(result, [report.number], header=report.number == 1))
        else:
            screen.print(task_line(result, report.number), markup=False, soft_wrap=True)

    try:
        if not quiet:
            screen.print(f"{run.settings.method} on {stream.name}, in {run.directory}", markup=False, soft_wrap=True)
            if run.has_result():
                screen.print(task_table(run.result()))
        with nullcontext(silence) if quiet else showing(screen, work) as listener:
            result = run.go(stream, listener, after_task)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; go on with 'drcil resume {run.directory}'") from None
    plot_curve([result], run.directory / CURVE)
    if json:
        print_json(result)
    if not (json and quiet):
        screen.print(summary_table(result))
        screen.print(f"curve: {run.directory / CURVE}", markup=False, soft_wrap=True)
