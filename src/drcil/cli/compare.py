"""drcil compare, reproduce."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from ..registry import named_plugins
from ..settings import ExperimentSettings, RunSettings, expand_user
from . import options
from .console import console, print_json
from .options import Json, Metric, Plugin, Quiet, Stream, fields_of, takes, usable

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.experiment import Common, Experiment
    from ..experiments.jobs import Jobs
    from ..experiments.tables import Report


@takes(RunSettings, leave_out=("method", "stream", "seed"), experiment=ExperimentSettings)
def compare(
    context: typer.Context,
    values: dict[str, Any],
    experiment: ExperimentSettings,
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="See 'drcil list methods'.")],
    stream: Stream,
    out: Annotated[
        Path | None, options.out("Directory for the report and the runs.", "comparisons/NAME, and runs")
    ] = None,
    metric: Metric = None,
    plugin: Plugin = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a stream. Finished runs are reused; interrupted runs resume."""
    from ..experiments.runner import run_comparison
    from ..experiments.scheduler import progress_display
    from .training import warn_of_skipped

    screen = console(stderr=json)
    with progress_display(screen, quiet) as display:
        report, jobs, directory = run_comparison(
            methods,
            [stream],
            values,
            experiment,
            display,
            metric=metric,
            out=out,
            command=_command(context),
            warn=warn_of_skipped,
            flags=True,
        )
    _print_report(report, jobs, directory, screen, json, quiet)


_NAMED = 4
"""Tables in the name of a directory."""
_PRINTING = ("dry_run", "json", "quiet")
"""Options, all of them switches, that say what is printed."""


@takes(RunSettings, leave_out=("method", "stream", "seed", "order_seed"), experiment=ExperimentSettings)
def reproduce(
    context: typer.Context,
    values: dict[str, Any],
    experiment: ExperimentSettings,
    names: Annotated[
        list[str],
        typer.Argument(metavar="TABLE...|FILE.toml", help="Such as T6 F7, see 'drcil paper'; or a suite of your own."),
    ],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these rows, or methods: MAF,mafdrc; 'mafdrc, alpha=0.1' is a row too.",
            rich_help_panel="Experiment",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Only these streams or datasets: cifar100-b0-10.", rich_help_panel="Experiment"
        ),
    ] = None,
    out: Annotated[Path | None, options.out("Directory for the report and the runs.", "suites/NAME, and runs")] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Take finished runs from here: a run, or a directory of runs; repeatable.",
            rich_help_panel="Output",
            callback=usable,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be run, and an estimate.", rich_help_panel="Output"),
    ] = False,
    plugin: Plugin = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run what tables and figures of the paper show; measured values stand beside published ones.

    Finished runs are reused; interrupted runs resume. A run that several tables show is trained once. Options apply
    where a table does not say otherwise.
    """
    from ..experiments.backends import make_backend
    from ..experiments.experiment import Common, checked_requests
    from ..experiments.jobs import Datasets, KnownRuns, plan_jobs
    from ..experiments.runner import find_directory, run_experiment
    from ..experiments.scheduler import progress_display
    from ..runs.execution import RUNS
    from .training import warn_of_skipped

    backend = make_backend(experiment, values.get("device"))
    common = Common(experiment.seeds, **values)
    for option, selection in (("--rows", rows), ("--columns", columns)):
        _require_names(option, selection)
    selected = [name.strip() for name in columns.split(",")] if columns else []
    plan = _experiment(names, common).select(rows, selected)
    requests = checked_requests(plan, backend.threads)
    request = {"names": list(plan.names), "rows": rows, "columns": columns, "seeds": plan.seeds}
    request |= plan.definition
    request |= {field.name: values.get(field.name) for field in fields_of(RunSettings) if field.option.is_result}
    name = _directory_name(plan.names, values.get("profile"))
    directory = out or find_directory(Path("suites") / name, request)
    runs = (out or Path()) / RUNS
    known_runs = KnownRuns(runs, [_existing(directory) for directory in reuse or []])
    jobs = plan_jobs(requests, runs, known_runs, Datasets(warn_of_skipped), plan.inspected())
    screen = console(stderr=json)
    if dry_run:
        _show_plan(jobs, experiment.jobs or 1, screen, json)
        return
    jobs.check_data()
    with progress_display(screen, quiet) as display:
        report = run_experiment(plan, jobs, directory, runs, request, backend, display, _command(context))
    _print_report(report, jobs, directory, screen, json, quiet)


def _experiment(names: list[str], common: Common) -> Experiment:
    """Tables and figures of the paper by name; or the experiment of a file."""
    from ..experiments.experiment import read_suite
    from ..experiments.published import paper_experiment

    files = [name for name in names if name.endswith(".toml")]
    if not files:
        for name in names:
            if Path(name).is_file():
                raise UserError(f"'{name}' is no table or figure of the paper; a suite's file has a name in '.toml'")
        return paper_experiment(names, common)
    if len(names) > 1:
        raise UserError(f"'{files[0]}' is a suite by itself; give it alone, or tables and figures of the paper")
    return read_suite(Path(files[0]), common)


def _require_names(option: str, names: str | None) -> None:
    if names is not None and not all(name.strip() for name in names.split(",")):
        raise UserError(f"{option} takes names with commas between them, such as MAF,MAFDRC, not '{names}'")


def _existing(directory: Path) -> Path:
    if not expand_user(directory).is_dir():
        raise UserError(f"--reuse takes a directory that has runs, and there is none at '{directory}'")
    return expand_user(directory)


def _directory_name(names: tuple[str, ...], profile: str | None) -> str:
    """The name of the directory of an experiment."""
    short = [Path(name).stem for name in names]
    joined = "-".join(short[:_NAMED]) + (f"-and-{len(short) - _NAMED}-more" if len(short) > _NAMED else "")
    return joined if profile in (None, "full") else f"{joined}-{profile}"


def _command(context: typer.Context) -> str:
    """What makes or continues the suite: the arguments and options that were given, but for how it is shown."""
    arguments = ["drcil", str(context.info_name)]
    for param in context.command.params:
        name = str(param.name)
        source, value = context.get_parameter_source(name), context.params.get(name)
        # Plugins are named in more ways than by the option.
        if name in ("plugin", *_PRINTING) or source is None or source.name not in ("COMMANDLINE", "ENVIRONMENT"):
            continue
        if isinstance(value, bool):
            arguments += [(param.opts if value else param.secondary_opts)[0]]
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            arguments += [*([param.opts[0]] if param.opts[0].startswith("-") else []), str(item)]
    for plugin in named_plugins():
        arguments += ["--plugin", plugin]
    return shlex.join(arguments)


def _show_plan(jobs: Jobs, parallel: int, screen: Console, json: bool) -> None:
    """Print the jobs, and about how long they take on this machine."""
    from ..experiments.cost import Estimate, SpeedCache
    from ..experiments.writers import job_table
    from .paper import measuring

    states = [jobs.state(job) for job in jobs.all]
    with measuring(SpeedCache()) as costs:
        estimate = Estimate.of(jobs, costs, parallel)
    if json:
        runs = zip(jobs.all, states, estimate.seconds, strict=True)
        plan = [{"run": job.name, "state": state, "seconds": seconds} for job, state, seconds in runs]
        print_json({"runs": plan, "jobs": parallel, "seconds": estimate.whole(), "on": list(estimate.conditions)})
        return
    screen.print(job_table(jobs.all, states, estimate.seconds))
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{len(states)} run{'' if len(states) == 1 else 's'}: {counts}", *estimate.sentences()]
    _print_lines([*lines, *_missing(jobs)], screen)


def _print_report(report: Report, jobs: Jobs, directory: Path, screen: Console, json: bool, quiet: bool) -> None:
    """Print a report; exit with 1 if a run failed."""
    from ..files import read_json
    from ..runs.evidence import REPORT

    if json:
        print_json(read_json(directory / REPORT))
    if not (json and quiet):
        _show(report, jobs, directory, screen)
    if report.failures:
        raise typer.Exit(1)


def _show(report: Report, jobs: Jobs, directory: Path, screen: Console) -> None:
    """Print the tables of a report, and where its files are."""
    from ..experiments.plots import PLOTS
    from ..experiments.runner import HTML
    from ..experiments.writers import report_tables

    for table in report.tables:
        _print_lines([f"{table.name}: {table.caption}"], screen)
        for heading, rendered in report_tables(table):
            _print_lines([heading], screen)
            screen.print(rendered)
    plots = [f"plots: {directory / PLOTS}"] if report.plots else []
    failures = [f"failed: {failure}" for failure in report.failures]
    _print_lines([*failures, *_missing(jobs), *plots, f"report: {directory / HTML}"], screen)


def _missing(jobs: Jobs) -> list[str]:
    return [f"data not found: {reason}" for reason in jobs.missing()]


def _print_lines(lines: list[str], screen: Console) -> None:
    for line in lines:
        screen.print(line, markup=False, soft_wrap=True)
