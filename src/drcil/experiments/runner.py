"""Runs an experiment in its directory and writes its report; ``drcil.run``, ``resume``, ``compare`` and ``read``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from ..data.dataset import Dataset
from ..errors import (
    Interrupted,
    UserError,
    WrongTypeError,
    check_path,
    check_text,
    format_value,
    optional,
    printable,
)
from ..files import (
    file_lock,
    make_directory,
    read_json,
    remove,
    require_directories,
    stale_temporary_files,
    write_bytes,
    write_json,
)
from ..methods.catalog import named_method
from ..metrics import require_figure
from ..runs.evidence import REPORT, RunRecord, find_records, record_of
from ..runs.execution import RUNS, Run, create_run
from ..runs.plan import RunPlan, complete, load_stream, plan_run, require_part, require_tasks
from ..settings import ExperimentSettings, RunSettings
from ..streams.stream import task_images
from ..train import Listener
from ..train.events import silence
from .backends import Backend, make_backend
from .experiment import Experiment, PlotPlan, TablePlan, checked_requests, comparison
from .jobs import NOT_FOUND, Datasets, Jobs, KnownRuns, may_choose_memory, plan_jobs, require_once
from .pages import report_page, write_run_report
from .plots import PLOTS, write_plots
from .scheduler import Display, log_file, progress_display, run_jobs
from .summary import TITLES, Mean, MetricColumns, with_means
from .tables import Cell, Plot, Report, Table, report_runs, task_plot
from .writers import report_csv, report_json, report_markdown, runs_csv

LOGS, _LOCK = "logs", ".lock"
HTML, MARKDOWN, CSV, RUNS_CSV = "report.html", "report.md", "report.csv", "runs.csv"
_FILES = (REPORT, HTML, MARKDOWN, CSV, RUNS_CSV, PLOTS)
"""All but the first can be made again from the runs."""
_WRITING = 0.05
"""Share of the time that may be spent on reports while runs are trained."""


def find_directory(preferred: Path, request: Mapping[str, Any]) -> Path:
    """The directory of the same request, made before; else an unused one: the preferred name, or with a number."""
    directory, number = preferred, 2
    while directory.exists() and _stored_request(directory) != request:
        directory, number = preferred.with_name(f"{preferred.name}-{number}"), number + 1
    return directory


@contextmanager
def open_directory(directory: Path, request: Mapping[str, Any]) -> Iterator[None]:
    """Lock the directory of an experiment and store the request; a report that is there stays until the next one.

    A request has ``names`` (what is compared or reproduced) and ``seeds``. It may grow by more of both. A directory
    of another request is refused.
    """
    _require_usable(directory, request)
    make_directory(directory)
    with file_lock(directory / _LOCK, f"{directory} is in use by another experiment; wait for it or stop it"):
        # Again: another process may have used the directory since.
        _require_usable(directory, request)
        for file in stale_temporary_files(directory, _FILES.__contains__):
            remove(file, root=directory)
        if _stored_request(directory) is None:
            write_json(directory / REPORT, {"request": request, "tables": []})
        yield


def _stored_request(directory: Path) -> dict[str, Any] | None:
    """The request of a directory; None if it is lost or damaged."""
    try:
        stored = read_json(directory / REPORT)
    except UserError:
        return None
    request = stored.get("request") if isinstance(stored, dict) else None
    if not isinstance(request, dict) or type(request.get("seeds")) is not int:
        return None
    names = request.get("names")
    return request if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _require_usable(directory: Path, request: Mapping[str, Any]) -> None:
    """A directory is usable if it holds nothing but runs, or the report of a request that the new one covers.

    If its request is lost or damaged, its other files are made again.
    """
    if not directory.exists():
        return
    stored = _stored_request(directory)
    if stored is None:
        names: tuple[str | Path, ...] = (RUNS, LOGS, _LOCK)
        if os.path.lexists(directory / _LOCK):
            names += _FILES
        expected = {*stale_temporary_files(directory, _FILES.__contains__), *(directory / name for name in names)}
        if not directory.is_dir() or set(directory.iterdir()) - expected:
            raise UserError(f"{directory} exists and is not an empty directory; choose another --out")
    elif not _covers(request, stored):
        raise UserError(f"{directory} holds another experiment, of {', '.join(stored['names'])}; choose another --out")


def _covers(request: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a request is the stored one, perhaps with more names or seeds."""
    if not set(stored["names"]) <= set(request["names"]) or stored["seeds"] > request["seeds"]:
        return False
    return {**stored, "names": request["names"], "seeds": request["seeds"]} == request


def experiment_report(experiment: Experiment, jobs: Jobs, command: str, logs: Path) -> Report:
    """The report of the runs that are finished by now."""
    failed = [job for job in jobs.all if job.failure is not None]
    plots = (_plot(plan, jobs) for plan in experiment.plots)
    return Report(
        title=experiment.title,
        command=command,
        tables=tuple(_table(plan, jobs) for plan in experiment.tables),
        plots=tuple(plot for plot in plots if plot is not None),
        failures=tuple(f"{job.name}: {job.failure} (log: {log_file(job, logs)})" for job in failed),
    )


def _table(plan: TablePlan, jobs: Jobs) -> Table:
    cells = {}
    for at, cell in plan.cells.items():
        records = jobs.records(cell.runs)
        note = "" if records else NOT_FOUND
        orders = cell.published_orders
        cells[at] = Cell(cell.metric, records, cell.published, cell.error, note, orders, cell.full_budget)
    several = len({column.group for _, column in cells}) > 1
    rows = {f"{row}, {column.group}" if several else row: cell.records for (row, column), cell in cells.items()}
    return Table(plan.name, with_means(plan.caption, rows), cells)


def _plot(plan: PlotPlan, jobs: Jobs) -> Plot | None:
    """The plot of the finished runs; None if there are none."""
    if plan.kind == "images":
        return _image_plot(plan, jobs)
    points = {name: [(value, jobs.records(requests)) for value, requests in line] for name, line in plan.lines.items()}
    records = {name: tuple(record for _, runs in line for record in runs) for name, line in points.items()}
    if plan.kind == "tasks":
        return task_plot(plan.name, plan.caption, MetricColumns(plan.metric), records, plan.highlight)
    lines = {}
    for name, line in points.items():
        means = [(value, Cell(plan.metric, runs).measured) for value, runs in line]
        measured = tuple((value, mean) for value, mean in means if mean is not None)
        if measured:
            lines[name] = measured
    if not lines:
        return None
    rows = {f"{name}, {plan.setting}={value:g}": runs for name, line in points.items() for value, runs in line}
    label = f"{TITLES.get(plan.metric, plan.metric)} (%)"
    return Plot(plan.name, with_means(plan.caption, rows), plan.setting, label, lines, records=records)


def _image_plot(plan: PlotPlan, jobs: Jobs) -> Plot | None:
    """Training images of a new and of an old class, task by task."""
    run = plan.inspected
    dataset = jobs.datasets.get(run) if run is not None else None
    if run is None or dataset is None:
        return None
    tasks = task_images(load_stream(run, dataset))[: run.tasks]
    new = [(float(task.number), Mean(float(task.new.mean()), None)) for task in tasks]
    old = [(float(task.number), Mean(float(task.memory.mean()), None)) for task in tasks if len(task.memory)]
    lines = {"a new class": tuple(new), "an old class": tuple(old)}
    return Plot(plan.name, plan.caption, "task", "training images of a class", lines, percent=False)


def write_reports(directory: Path, request: Mapping[str, Any], report: Report, with_plots: bool = True) -> None:
    """Write a report in all formats. Drawing plots takes a while.

    The page is written last, so that it changes only if everything else could be written.
    """
    for name in (REPORT, MARKDOWN, CSV, RUNS_CSV, HTML):
        if (directory / name).is_dir():
            raise UserError(f"a report cannot be written: {directory / name} is a directory")
    write_json(directory / REPORT, {"request": request, **report_json(report)})
    plots = write_plots(directory, report) if with_plots else {}
    for name, text in (
        (MARKDOWN, report_markdown(report, plots)),
        (CSV, report_csv(report)),
        (RUNS_CSV, runs_csv(report)),
        (HTML, report_page(report)),
    ):
        write_bytes(directory / name, printable(text).encode())


def run_experiment(
    experiment: Experiment,
    jobs: Jobs,
    directory: Path,
    runs: Path,
    request: Mapping[str, Any],
    backend: Backend,
    display: Display,
    command: str = "",
) -> Report:
    """Finish all jobs that can be finished, and write the report, which is updated meanwhile.

    ``runs``: the directory of new runs.
    """
    updated, duration = -math.inf, 0.0

    def update() -> None:
        nonlocal updated, duration
        started = time.monotonic()
        if (started - updated) * _WRITING >= duration:
            report = experiment_report(experiment, jobs, command, directory / LOGS)
            write_reports(directory, request, report, with_plots=False)
            updated = time.monotonic()
            duration = updated - started

    possible = jobs.possible()
    is_needed = any(job.result is None for job in possible)
    # Runs inside the directory must not be reached through a link.
    require_directories(directory, LOGS, PLOTS, *([runs.name] if runs.parent == directory else []))
    try:
        parallel = backend.open([runs, directory]) if is_needed else 1
        with open_directory(directory, request):
            run_jobs(possible, parallel, jobs.datasets, backend, directory / LOGS, display, update)
            report = experiment_report(experiment, jobs, command, directory / LOGS)
            write_reports(directory, request, report)
            return report
    except KeyboardInterrupt:
        raise Interrupted("interrupted; run the same command again to continue") from None
    finally:
        if is_needed:
            backend.close()


def run_comparison(
    methods: Sequence[str],
    streams: Sequence[str],
    values: Mapping[str, Any],
    settings: ExperimentSettings,
    display: Display,
    *,
    metric: str | None = None,
    out: Path | None = None,
    command: str = "",
    warn: Callable[[Dataset], None] = lambda dataset: None,
    flags: bool = False,
) -> tuple[Report, Jobs, Path]:
    """Compare methods on streams; the report, the jobs and the directory. ``values``: settings that runs share.

    ``warn`` is called with each dataset that is loaded. ``flags``: errors name options of the command line.
    """
    require_once(methods)
    require_once(streams)
    backend = make_backend(settings, values.get("device"))
    if metric is not None:
        require_figure(metric)
    by_stream: dict[str, list[RunSettings]] = {}
    for stream in streams:
        for method in methods:
            memory = values.get("memory") if may_choose_memory(method) else None
            run = RunSettings.parse({**values, "method": method, "stream": stream, "memory": memory}, flags=flags)
            by_stream.setdefault(stream, []).append(complete(run))
    experiment = comparison(methods, by_stream, settings.seeds or 1, metric)
    requests = checked_requests(experiment, backend.threads)
    request = {**experiment.definition, "memory": values.get("memory"), "tasks": values.get("tasks")}
    request |= {"names": list(methods), "seeds": experiment.seeds}
    first = by_stream[streams[0]][0]
    directory = out or find_directory(Path("comparisons") / first.directory_stem, request)
    runs, datasets = (out or Path()) / RUNS, Datasets(warn)
    for runs_of_stream in by_stream.values():
        _check_loaded(runs_of_stream, datasets)
    jobs = plan_jobs(requests, runs, KnownRuns(runs), datasets)
    jobs.check_data()
    return run_experiment(experiment, jobs, directory, runs, request, backend, display, command), jobs, directory


def _check_loaded(runs: Sequence[RunSettings], datasets: Datasets) -> None:
    """Check what is only known once the data is loaded, before there is a directory."""
    if runs[0].tasks is None and runs[0].freeze is None:
        return
    dataset = datasets.get(runs[0])
    if dataset is not None:
        stream = load_stream(runs[0], dataset)
        require_tasks(runs[0], stream)
        for run in runs:
            require_part(run, stream)


# Python


def run(
    method: str = "mafdrc",
    stream: str = "digits-b0-5",
    *,
    out: str | Path | None = None,
    listener: Listener = silence,
    **options: Any,
) -> RunRecord:
    """Train a method on a stream in a new run directory, like ``drcil run``.

    ``out``: the directory; None: ``runs/NAME``. ``listener`` is called with every event of training. ``options``: the
    options of ``drcil run`` by name, such as ``seed``, ``memory``, ``epochs_scale``, ``device`` or ``settings``.
    """
    plan = plan_run(complete(RunSettings.parse({**options, "method": method, "stream": stream})))
    created = create_run(plan.settings, optional(check_path, "out", out), plan)
    return _train(created, plan, listener)


def resume(directory: str | Path, *, listener: Listener = silence) -> RunRecord:
    """Finish a run that was interrupted, like ``drcil resume``."""
    stored = Run.open(check_path("directory", directory))
    return _train(stored, plan_run(stored.settings), listener)


def _train(run: Run, plan: RunPlan, listener: Listener) -> RunRecord:
    run.train(plan, listener)
    write_run_report(run)
    return record_of(run)


def compare(
    methods: str | Sequence[str],
    streams: str | Sequence[str] = "digits-b0-5",
    *,
    seeds: int = 1,
    metric: str | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    backend: str | None = None,
    **options: Any,
) -> Report:
    """Compare methods on streams, like ``drcil compare``. Finished runs are reused; interrupted runs resume.

    ``out``: the directory of report and runs; None: ``comparisons/NAME`` and ``runs``. ``backend``: None executes runs
    in child processes, and in this process if a method is defined in a notebook or script. ``options`` as in ``run``.
    """
    names, on = _names("methods", methods), _names("streams", streams)
    if backend is None:
        is_local = any(named_method(name)[0].build.__module__ == "__main__" for name in names)
        backend = "inline" if is_local else "local"
    settings = ExperimentSettings.parse({"seeds": seeds, "jobs": jobs, "backend": backend})
    directory = optional(check_path, "out", out)
    with progress_display(Console(stderr=True), quiet=True) as display:
        report, _, _ = run_comparison(names, on, options, settings, display, metric=metric, out=directory)
    return report


def _names(argument: str, value: object) -> list[str]:
    """One name or several, as a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names:
        raise WrongTypeError(f"{argument} must be a name or a list of names, not {format_value(value)}")
    return [check_text(argument, name) for name in names]


def read(*paths: str | Path) -> Report:
    """The report of runs, evidence files, and directories of either or of experiments, like ``drcil report``."""
    records, problems = find_records([check_path("a path", path) for path in paths])
    return report_runs(records, notes=[f"Left out: {problem}" for problem in problems])
