"""drcil report: a page or tables from existing runs; stores their evidence."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from .console import console, warn
from .options import Plugin, usable

if TYPE_CHECKING:
    from ..runs.evidence import RunRecord

_ENDINGS = (".html", ".md", ".csv", ".json")


def report(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...|DIR", help="Runs, and directories of runs, suites or evidence.", callback=usable
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to write: a page (.html), Markdown (.md), CSV (.csv) or JSON (.json).",
            show_default="report.html",
            callback=usable,
        ),
    ] = None,
    highlight: Annotated[str | None, typer.Option(metavar="METHOD", help="The row that stands out in plots.")] = None,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only keep a small file of each finished run here.", callback=usable),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Make a report of runs, finished or not: a table and curves for each stream."""
    from ..runs.evidence import find_records

    if store is not None and (out is not None or highlight is not None):
        raise UserError(f"--store only stores; make the report afterwards, with 'drcil report {store}'")
    _require_file(out or Path("report.html"))
    records, problems = find_records(places)
    for problem in problems:
        warn(f"left out: {problem}")
    if store is not None:
        _store(records, store)
    else:
        command = shlex.join(["drcil", "report", *map(str, places)])
        notes = [f"Left out: {problem}" for problem in problems]
        _report(records, out or Path("report.html"), command, highlight or "", notes)


def _require_file(out: Path) -> None:
    if out.is_dir():
        raise UserError(f"--out is a file, and '{out}' is a directory; give '{out / 'report.html'}'")
    if out.suffix.lower() not in _ENDINGS:
        raise UserError(f"--out ends in {', '.join(_ENDINGS)}, not '{out.name}'")


def _store(records: list[RunRecord], directory: Path) -> None:
    from ..runs.evidence import write_evidence

    if directory.exists() and not directory.is_dir():
        raise UserError(f"--store is a directory, and '{directory}' is a file")
    stored = 0
    for record in records:
        if record.result is not None and record.result.complete:
            write_evidence(record, directory)
            stored += 1
        else:
            warn(f"left out: {record.directory} is not finished")
    count = "1 run" if stored == 1 else f"{stored} runs"
    console().print(f"{count} stored in {directory}", markup=False, soft_wrap=True)


def _report(records: list[RunRecord], out: Path, command: str, highlight: str, notes: list[str]) -> None:
    from ..experiments.pages import write_report
    from ..experiments.tables import report_runs
    from ..experiments.writers import report_tables

    made = report_runs(records, command, highlight, notes)
    write_report(made, out)
    screen = console()
    for table in made.tables:
        for _, rendered in report_tables(table):
            screen.print(f"{table.name}: {table.caption}", markup=False, soft_wrap=True)
            screen.print(rendered)
    screen.print(f"report: {out}", markup=False, soft_wrap=True)
