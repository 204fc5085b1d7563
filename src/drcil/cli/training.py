"""Shared by the verbs that train: plan a run, execute it, show progress and the result."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from .. import distributed
from ..data.dataset import Dataset, skipped_files
from ..errors import Interrupted, UserError
from ..experiments.pages import write_run_report
from ..experiments.writers import summary_table, task_line, task_table
from ..process import configure, find_process_info
from ..registry import named_plugins
from ..runs.execution import CURVE, PAGE, Run, create_run
from ..runs.plan import RunPlan, load_stream, plan_run
from ..runs.result import RunResult
from ..settings import RunSettings
from ..streams.stream import Stream
from ..train.events import Event, TaskDone, silence
from ..train.launch import threads_per_process
from ..train.progress import showing
from .console import console, print_json, warn

_NAMED_FILES = 3


def warn_of_skipped(dataset: Dataset) -> None:
    """Name some of the files that could not be read and are left out."""
    skipped = skipped_files(dataset)
    if skipped:
        suffix = ", …" if len(skipped) > _NAMED_FILES else ""
        files = "1 unreadable file" if len(skipped) == 1 else f"{len(skipped)} unreadable files"
        warn(f"{files} skipped: {', '.join(skipped[:_NAMED_FILES])}{suffix}")


def load(settings: RunSettings) -> Stream:
    """The stream of a run, with the same warning."""
    stream = load_stream(settings)
    warn_of_skipped(stream.dataset)
    return stream


def make_plan(settings: RunSettings) -> RunPlan:
    """What a run will do, with the same warning."""
    return plan_run(settings, load(settings))


def train(run: Run, plan: RunPlan, *, json: bool, quiet: bool) -> None:
    """Train the remaining tasks, then print the result; of several processes the first prints."""
    configure(threads_per_process(run.settings.threads), run.settings.deterministic)
    if not distributed.is_main():
        run.train(plan)
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

            def report(event: Event) -> None:
                begin()
                listener(event)
                if isinstance(event, TaskDone) and not quiet:
                    show_task(event.task)

            result = run.train(plan, report, warn)
        begin()
    except KeyboardInterrupt:
        plugins = "".join(f" --plugin {name}" for name in named_plugins())
        raise Interrupted(f"interrupted; continue with 'drcil resume {run.directory}{plugins}'") from None
    write_run_report(run)
    print_result(result, run, screen, json=json, quiet=quiet)


def begin_run(settings: RunSettings, out: Path | None, plan: RunPlan) -> Run:
    """The run that the main process creates, or resumes if the launcher has restarted all processes."""
    info = find_process_info()
    if distributed.size() == 1 or info is None:
        return create_run(settings, out, plan, warn)
    run = None
    if distributed.is_main():
        # torchrun does not count restarts on all machines.
        if out is not None and (info.restarts or info.launcher == "torchrun"):
            run = _same_run(settings, out)
        run = run or create_run(settings, out, plan, warn)
    directory = distributed.broadcast_object(run.directory.absolute() if run else Path())
    require_visible(directory)
    return run or Run.open(directory)


def require_visible(directory: Path) -> None:
    """Check that all machines of the run see its directory."""
    for host, is_visible in distributed.all_gather_object((platform.node(), directory.is_dir())):
        if not is_visible:
            raise UserError(f"{directory} cannot be seen on {host}; put runs where all machines see them, with --out")


def _same_run(settings: RunSettings, directory: Path) -> Run | None:
    """The run in a directory, if there is one with the same settings."""
    try:
        run = Run.open(directory)
    except UserError:
        return None
    return run if run.settings.identity() == settings.identity() else None


def print_result(result: RunResult, run: Run, screen: Console, *, json: bool, quiet: bool) -> None:
    """Print the result of a run, as JSON or as a table."""
    if json:
        print_json(result.to_json())
    if not (json and quiet):
        screen.print(summary_table(result))
        screen.print(f"curve: {run.directory / CURVE}, page: {run.directory / PAGE}", markup=False, soft_wrap=True)


def _heading(run: Run, screen: Console) -> Callable[[], None]:
    """A function that prints the run and the tasks that are finished now."""
    settings = run.settings
    finished_tasks = task_table(run.result()) if run.has_result else None

    def print_heading() -> None:
        screen.print(f"{settings.label} on {settings.stream}, in {run.directory}", markup=False, soft_wrap=True)
        if finished_tasks is not None:
            screen.print(finished_tasks)

    return print_heading


def once(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function at the first call only: the heading is printed when the run resumes, not before it is refused."""
    return functools.cache(function)
