"""What the verbs that train share: a run that is planned, then carried out and shown, and its result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from ..data.datasets.check import skipped_files
from ..data.datasets.dataset import Dataset
from ..errors import Interrupted
from ..plugins import named_plugins
from ..process import configure
from ..report.plots import plot_curve
from ..report.progress import showing
from ..report.tables import summary_table, task_line, task_table
from ..runs.about import PAGE, write_page
from ..runs.plan import Plan, load_stream, plan_run
from ..runs.run import Run
from ..runs.settings import RunSettings
from ..streams.stream import Stream
from ..team import ALONE, Team
from ..train.events import Event, TaskDone, silence
from .output import console, print_json, warn
from .spreading import threads_of

CURVE = "curve.png"
_NAMED_FILES = 3


def warn_of_skipped(dataset: Dataset) -> None:
    """Name some of the files that could not be read and are left out."""
    skipped = skipped_files(dataset)
    if skipped:
        more = ", …" if len(skipped) > _NAMED_FILES else ""
        files = "1 unreadable file" if len(skipped) == 1 else f"{len(skipped)} unreadable files"
        warn(f"{files} skipped: {', '.join(skipped[:_NAMED_FILES])}{more}")


def load(settings: RunSettings) -> Stream:
    """The stream of a run, with the same warning."""
    stream = load_stream(settings)
    warn_of_skipped(stream.dataset)
    return stream


def make_plan(settings: RunSettings) -> Plan:
    """What a run will do, with the same warning."""
    return plan_run(settings, load(settings))


def train(run: Run, plan: Plan, team: Team = ALONE, *, json: bool, quiet: bool) -> None:
    """Learn what is left to learn, then print the result; of several processes the first prints."""
    configure(threads_of(run.settings.threads, team))
    if not team.leads:
        run.go(plan)
        return
    screen = console(stderr=json)

    def show_task(number: int) -> None:
        result = run.result()
        if screen.is_terminal:
            screen.print(task_table(result, [number], header=number == 1))
        else:
            screen.print(task_line(result, number), markup=False, soft_wrap=True)

    try:
        begin = once(lambda: None) if quiet else once(_heading(run, screen))
        with nullcontext(silence) if quiet else showing(screen, plan.work) as listener:

            def told(event: Event) -> None:
                begin()
                listener(event)
                if isinstance(event, TaskDone) and not quiet:
                    show_task(event.task)

            result = run.go(plan, told, warn)
        begin()
    except KeyboardInterrupt:
        plugins = "".join(f" --plugin {name}" for name in named_plugins())
        raise Interrupted(f"interrupted; continue with 'drcil resume {run.directory}{plugins}'") from None
    plot_curve([result], run.directory / CURVE)
    write_page(run, result)
    print_result(result, run, screen, json=json, quiet=quiet)


def print_result(result: dict[str, Any], run: Run, screen: Console, *, json: bool, quiet: bool) -> None:
    """What a run has come to, for programs and for people."""
    if json:
        print_json(result)
    if not (json and quiet):
        screen.print(summary_table(result))
        screen.print(f"curve: {run.directory / CURVE}, page: {run.directory / PAGE}", markup=False, soft_wrap=True)


def _heading(run: Run, screen: Console) -> Callable[[], None]:
    """Prints what is run, and what is done of it so far, as of now."""
    own = run.settings
    done = task_table(run.result()) if run.has_result() else None

    def tell() -> None:
        screen.print(f"{own.label} on {own.stream}, in {run.directory}", markup=False, soft_wrap=True)
        if done is not None:
            screen.print(done)

    return tell


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Acts at the first call only: a heading is printed when the run goes on, not before it is refused."""
    return functools.cache(act)
