"""What came of a suite: measured beside published, as a report and in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..disk import write_bytes, write_json
from ..errors import UserError, legible
from ..report.measured import Curves, MeasuredCell, MeasuredTable, SuiteReport
from ..report.outcomes import Outcome, captioned, counted
from ..report.pages import suite_page
from ..report.plots import PLOTS, write_plots
from ..report.written import report_csv, report_markdown
from ..runs.settings import RunSettings
from .carrying import log_of
from .datasets import Datasets
from .entries import Entry, Wanted
from .folder import Folder
from .suite import CellPlan, Suite, TablePlan

NOT_FOUND = "data not found"
HTML, MARKDOWN, CSV = "report.html", "report.md", "report.csv"
SUITE = Folder("suite", "suite.json", "names", (HTML, MARKDOWN, CSV, PLOTS))


@dataclass(frozen=True)
class Answers:
    """The runs of a suite by their keys, and the datasets that they learn from."""

    entries: Mapping[str, Entry]
    datasets: Datasets
    looked_at: tuple[RunSettings, ...] = ()
    """Runs whose images are counted, though nothing is trained."""

    def outcomes(self, wanted: Sequence[Wanted]) -> tuple[Outcome, ...]:
        return tuple(self.entries[one.key].outcome(one.method) for one in wanted if not self.lacks_data(one))

    def lacks_data(self, one: Wanted) -> bool:
        """Whether a run has no result and cannot get one, for its data cannot be had."""
        entry = self.entries[one.key]
        return entry.result is None and self.datasets.missing(entry.settings) is not None

    def state(self, entry: Entry) -> str:
        """What will become of a run, in a word or two."""
        if entry.result is not None:
            return "finished"
        if self.datasets.missing(entry.settings) is not None:
            return NOT_FOUND
        return "to be resumed" if entry.begun else "to be started"

    def missing(self) -> list[str]:
        """Why some data cannot be had, a sentence each."""
        lacking = [entry.settings for entry in self.entries.values() if entry.result is None]
        reasons = (self.datasets.missing(run) for run in (*lacking, *self.looked_at))
        return list(dict.fromkeys(why for why in reasons if why is not None))

    def require_something(self) -> None:
        """At least one run can be finished, or images of one be counted; else it is said why not."""
        able = self.startable() or any(self.datasets.missing(run) is None for run in self.looked_at)
        if not able and self.missing():
            raise UserError(self.missing()[0])

    def startable(self) -> list[Entry]:
        """The runs that are finished or can be."""
        return [
            entry
            for entry in self.entries.values()
            if entry.result is not None or self.datasets.missing(entry.settings) is None
        ]


def suite_report(suite: Suite, answers: Answers, command: str, logs: Path) -> SuiteReport:
    """All that is known by now."""
    failed = [entry for entry in answers.entries.values() if entry.failure is not None]
    drawn = (drawing.drawn(answers) for drawing in suite.drawings)
    return SuiteReport(
        title=suite.title,
        command=command,
        tables=tuple(_table(table, answers) for table in suite.tables),
        curves=tuple(curves for curves in drawn if curves is not None),
        failures=tuple(f"{entry.name}: {entry.failure} (log: {log_of(entry, logs)})" for entry in failed),
    )


def _table(plan: TablePlan, answers: Answers) -> MeasuredTable:
    cells = {at: _cell(cell, answers) for at, cell in plan.cells.items()}
    several = len({column.group for _, column in cells}) > 1
    runs = {f"{row}, {column.group}" if several else row: cell.outcomes for (row, column), cell in cells.items()}
    return MeasuredTable(
        plan.name,
        captioned(plan.caption, runs),
        rows=tuple(dict.fromkeys(row for row, _ in cells)),
        columns=tuple(dict.fromkeys(column for _, column in cells)),
        cells=cells,
    )


def _cell(plan: CellPlan, answers: Answers) -> MeasuredCell:
    outcomes = answers.outcomes(plan.wanted)
    note = "" if outcomes else NOT_FOUND
    return MeasuredCell(plan.metric, outcomes, plan.published, plan.error, note, plan.published_runs, plan.whole)


def write_answer(place: Path, question: dict[str, Any], report: SuiteReport, drawn: bool = True) -> dict[str, Any]:
    """Write what came of it: a page, tables and plots; the same as one object.

    ``drawn``: whether plots are drawn as pictures, which takes a while.
    """
    answer = {"question": question, **report_json(report)}
    write_json(place / SUITE.file, answer)
    plots = write_plots(place, report) if drawn else {}
    for name, text in (
        (HTML, suite_page(report)),
        (MARKDOWN, report_markdown(report, plots)),
        (CSV, report_csv(report)),
    ):
        write_bytes(place / name, legible(text).encode())
    return answer


def report_json(report: SuiteReport) -> dict[str, Any]:
    """For programs: tables cell by cell, and plots point by point."""
    return {
        "title": report.title,
        "command": report.command,
        "tables": [_table_json(table) for table in report.tables],
        "curves": [_curves_json(curves) for curves in report.curves],
        "failures": list(report.failures),
    }


def _table_json(table: MeasuredTable) -> dict[str, Any]:
    cells = []
    for (row, column), cell in table.cells.items():
        measured = cell.measured
        cells.append(
            {
                "row": row,
                "column": column.group,
                "metric": cell.metric,
                "measured": measured and asdict(measured),
                "over": counted(cell.outcomes) if measured else None,
                "published": cell.published,
                "published_error": cell.published_error,
                "difference": cell.difference,
                "note": cell.note,
                "runs": [one.directory for one in cell.outcomes],
            }
        )
    return {"name": table.name, "caption": table.caption, "cells": cells}


def _curves_json(curves: Curves) -> dict[str, Any]:
    lines = {name: [[x, asdict(y)] for x, y in points] for name, points in curves.lines.items()}
    return {
        "name": curves.name,
        "caption": curves.caption,
        "across": curves.across,
        "along": curves.along,
        "lines": lines,
    }
