"""``drcil reproduce``: the paper's tables and figures, or a suite of the user's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from . import options
from .checks import usable
from .chosen import data_directory
from .output import console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ..report.measured import SuiteReport
    from ..suites.answer import Answers
    from ..suites.suite import Common, Suite

_NAMED = 4
"""Tables in the name of a directory."""


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TABLE...|FILE.toml", help="Such as T6 F7, see 'drcil paper'; or a suite of your own."),
    ],
    profile: options.Profile = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only these rows, or methods: MAF,mafdrc; 'mafdrc, alpha=0.1' is a row too.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Only these streams or datasets: cifar100-b0-10.", rich_help_panel=options.WHAT
        ),
    ] = None,
    tasks: options.Tasks = None,
    seeds: options.Seeds = None,
    data: options.Data = None,
    jobs: options.Jobs = None,
    engine: options.Engine = "local",
    ray_address: options.RayAddress = None,
    cpus_per_run: options.CpusPerRun = None,
    gpus_per_run: options.GpusPerRun = None,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    workers: options.Workers = None,
    devices: options.Devices = None,
    out: Annotated[Path | None, options.out("Directory for the report and the runs.", "suites/NAME, and runs")] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Take finished runs from here: a run, or a directory of runs; repeatable.",
            rich_help_panel=options.SHOWN,
            callback=usable,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be run, and an estimate.", rich_help_panel=options.SHOWN),
    ] = False,
    plugin: options.Plugin = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run what tables and figures of the paper show; measured stands beside published.

    Finished runs are reused; interrupted runs resume. A run that several tables show is trained once.
    """
    from ..runs.begin import RUNS
    from ..suites.answer import SUITE, Answers, suite_report, write_answer
    from ..suites.datasets import Datasets
    from ..suites.engines import ENGINES, Request
    from ..suites.entries import plan_entries
    from ..suites.folder import LOGS
    from ..suites.reuse import KnownRuns
    from ..suites.suite import Common, checked_runs
    from .many import finish_runs, opened
    from .training import warn_of_skipped

    workshop = ENGINES[engine](Request(jobs, cpus_per_run, gpus_per_run, ray_address, device))
    chosen = {"device": device, "precision": precision, "workers": workers, "devices": devices}
    own = {name: value for name, value in chosen.items() if value is not None}
    common = Common(profile, tasks, seeds, data_directory(data), threads, own)
    for option, given in (("--rows", rows), ("--columns", columns)):
        _require_names(option, given)
    suite = _suite(names, common).narrowed(rows, [name.strip() for name in columns.split(",")] if columns else [])
    wanted = checked_runs(suite, workshop.threads)
    question = {"names": list(suite.names), "rows": rows, "columns": columns, "profile": profile, "tasks": tasks}
    question |= {"precision": precision, "seeds": suite.seeds}
    asked = {"profile": profile, "rows": rows, "columns": columns, "tasks": tasks, "seeds": seeds, "data": data}
    cluster = {"ray-address": ray_address, "cpus-per-run": cpus_per_run, "gpus-per-run": gpus_per_run}
    where = {"engine": None if engine == "local" else engine, **cluster, "jobs": jobs, "out": out}
    command = _command(names, {**asked, **chosen, "threads": threads, **where}, reuse or [])
    place = out or SUITE.find_place(Path("suites") / _place_name(suite.names, profile), question)
    runs, datasets, screen = (out or Path()) / RUNS, Datasets(warn_of_skipped), console(stderr=json)
    known = KnownRuns(runs, [_present(directory) for directory in reuse or []])
    looked_at = tuple(run for drawing in suite.drawings for run in drawing.looks_at())
    answers = Answers(plan_entries(wanted, runs, known, datasets), datasets, looked_at)
    if dry_run:
        _show_plan(answers, jobs or 1, screen, json)
        return
    answers.require_something()

    def told(drawn: bool = False) -> tuple[SuiteReport, dict[str, Any]]:
        """What is known by now, also on disk."""
        report = suite_report(suite, answers, command, place / LOGS)
        return report, write_answer(place, question, report, drawn)

    entries = answers.startable()
    needed = any(entry.result is None for entry in entries)
    with opened(workshop, needed, [runs, place]) as at_a_time, SUITE.opened(place, question):
        finish_runs(entries, at_a_time, datasets, place / LOGS, screen, quiet, workshop, told)
        report, answer = told(drawn=True)
    if json:
        print_json(answer)
    if not (json and quiet):
        _show(report, answers, place, screen)
    if report.failures:
        raise typer.Exit(1)


def _suite(names: list[str], common: Common) -> Suite:
    """Tables and figures of the paper by name; or what a file says."""
    from ..suites.own import read_suite
    from ..suites.published import paper_suite

    files = [name for name in names if name.endswith(".toml")]
    if not files:
        for name in names:
            if Path(name).is_file():
                raise UserError(f"'{name}' is no table or figure of the paper; a suite's file has a name in '.toml'")
        return paper_suite(names, common)
    if len(names) > 1:
        raise UserError(f"'{files[0]}' is a suite by itself; give it alone, or tables and figures of the paper")
    return read_suite(Path(files[0]), common)


def _require_names(option: str, given: str | None) -> None:
    if given is not None and not all(name.strip() for name in given.split(",")):
        raise UserError(f"{option} takes names with commas between them, such as MAF,MAFDRC, not '{given}'")


def _present(directory: Path) -> Path:
    if not directory.expanduser().is_dir():
        raise UserError(f"--reuse takes a directory that has runs, and there is none at '{directory}'")
    return directory.expanduser()


def _place_name(names: tuple[str, ...], profile: str | None) -> str:
    """The name of a suite's directory."""
    short = [Path(name).stem for name in names]
    shown = "-".join(short[:_NAMED]) + (f"-and-{len(short) - _NAMED}-more" if len(short) > _NAMED else "")
    return shown if profile in (None, "full") else f"{shown}-{profile}"


def _command(names: list[str], given: dict[str, Any], reuse: list[Path]) -> str:
    """What makes or continues the suite."""
    own = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    taken = [word for path in reuse for word in ("--reuse", str(path))]
    return shlex.join(["drcil", "reproduce", *names, *own, *taken])


def _show_plan(answers: Answers, jobs: int, screen: Console, json: bool) -> None:
    """What would be run, and about how long that takes on this machine."""
    from ..suites.estimate import Estimate
    from ..suites.paces import Paces
    from ..suites.shown import plan_table
    from .costs import measuring

    entries = list(answers.entries.values())
    states = [answers.state(entry) for entry in entries]
    with measuring(Paces()) as costs:
        estimate = Estimate.of(answers, costs, jobs)
    if json:
        runs = zip(entries, states, estimate.seconds, strict=True)
        plan = [{"run": one.name, "state": state, "seconds": seconds} for one, state, seconds in runs]
        print_json({"runs": plan, "jobs": jobs, "seconds": estimate.whole(), "on": list(estimate.conditions)})
        return
    screen.print(plan_table(entries, states, estimate.seconds))
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    screen.print(f"{len(entries)} run{'' if len(entries) == 1 else 's'}: {counts}", markup=False, soft_wrap=True)
    for sentence in estimate.sentences():
        screen.print(sentence, markup=False, soft_wrap=True)
    _tell_missing(answers, screen)


def _show(report: SuiteReport, answers: Answers, place: Path, screen: Console) -> None:
    """What came of it."""
    from ..report.plots import PLOTS
    from ..suites.answer import HTML
    from ..suites.shown import measured_tables

    for table in report.tables:
        screen.print(f"{table.name}: {table.caption}", markup=False, soft_wrap=True)
        for heading, shown in measured_tables(table):
            screen.print(heading, markup=False, soft_wrap=True)
            screen.print(shown)
    for failure in report.failures:
        screen.print(f"failed: {failure}", markup=False, soft_wrap=True)
    _tell_missing(answers, screen)
    if report.curves:
        screen.print(f"plots: {place / PLOTS}", markup=False, soft_wrap=True)
    screen.print(f"report: {place / HTML}", markup=False, soft_wrap=True)


def _tell_missing(answers: Answers, screen: Console) -> None:
    for why in answers.missing():
        screen.print(f"data not found: {why}", markup=False, soft_wrap=True)
