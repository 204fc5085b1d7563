"""``drcil report``: a page, or tables, from runs that are there; and the evidence that they leave."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from .checks import usable
from .options import Plugin
from .output import console, warn

if TYPE_CHECKING:
    from ..suites.records import Records

_ENDINGS = (".html", ".md", ".csv")


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
            help="What to write: a page (.html), Markdown (.md) or CSV (.csv).",
            show_default="report.html",
            callback=usable,
        ),
    ] = None,
    highlight: Annotated[str | None, typer.Option(metavar="METHOD", help="The row that stands out in plots.")] = None,
    verified: Annotated[
        bool,
        typer.Option("--verified", help="Write what was verified on what budget, and what was not, as Markdown."),
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only keep a small file of each finished run here.", callback=usable),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Make a report of runs, finished or not: a table and curves for each stream."""
    from ..suites.records import find_records

    if store is not None and (out is not None or verified or highlight is not None):
        raise UserError(f"--store only stores; make the report afterwards, with 'drcil report {store}'")
    if verified and highlight is not None:
        raise UserError("--highlight is for plots, and --verified has none")
    if out is not None:
        _require_file(out, (".md",) if verified else _ENDINGS)
    records = find_records(places)
    for why in records.passed_over:
        warn(f"left out: {why}")
    if store is not None:
        _store(records, store)
    elif verified:
        _verify(records, out)
    else:
        command = shlex.join(["drcil", "report", *map(str, places)])
        _report(records, out or Path("report.html"), command, highlight or "")


def _require_file(out: Path, endings: tuple[str, ...]) -> None:
    if out.is_dir():
        raise UserError(f"--out is a file, and '{out}' is a directory; give '{out / ('report' + endings[0])}'")
    if out.suffix.lower() not in endings:
        raise UserError(f"--out ends in {', '.join(endings)}, not '{out.name}'")


def _store(records: Records, place: Path) -> None:
    from ..runs.evidence import write_evidence

    if place.exists() and not place.is_dir():
        raise UserError(f"--store is a directory, and '{place}' is a file")
    finished = [one for one in records.found if one.result["complete"]]
    for one in records.found:
        if not one.result["complete"]:
            warn(f"left out: {one.place} is not finished")
    for one in finished:
        write_evidence(one, place)
    count = "1 run" if len(finished) == 1 else f"{len(finished)} runs"
    console().print(f"{count} stored in {place}", markup=False, soft_wrap=True)


def _verify(records: Records, out: Path | None) -> None:
    from ..disk import write_bytes
    from ..suites.verified import verified_page

    page = verified_page(records.found)
    if out is None:
        print(page, end="")
    else:
        write_bytes(out, page.encode())
        console().print(f"written: {out}", markup=False, soft_wrap=True)


def _report(records: Records, out: Path, command: str, highlight: str) -> None:
    from ..disk import write_bytes
    from ..errors import legible
    from ..report.pages import suite_page
    from ..report.written import report_csv, report_markdown
    from ..suites.gathered import gathered_report
    from ..suites.shown import measured_tables

    _require_file(out, _ENDINGS)
    made = gathered_report(records.found, command, highlight, [f"Left out: {why}" for why in records.passed_over])
    kind = out.suffix.lower()
    text = suite_page(made) if kind == ".html" else report_csv(made) if kind == ".csv" else report_markdown(made, {})
    write_bytes(out, legible(text).encode())
    screen = console()
    for table in made.tables:
        for _, shown in measured_tables(table):
            screen.print(f"{table.name}: {table.caption}", markup=False, soft_wrap=True)
            screen.print(shown)
    screen.print(f"report: {out}", markup=False, soft_wrap=True)
