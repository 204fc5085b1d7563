"""A comparison's directory: tables for readers and programs, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..disk import write_bytes, write_json
from ..errors import legible
from ..report.comparison import Summary, as_json, markdown, runs_csv, summary_csv
from ..report.gathered import stream_table, task_curves
from ..report.measured import SuiteReport
from ..report.outcomes import means_over
from ..report.pages import suite_page
from ..report.plots import plot_comparison
from .folder import Folder

TABLE, CURVES, SUMMARY, EACH, PAGE = "table.md", "curves.png", "summary.csv", "runs.csv", "report.html"
COMPARISON = Folder("comparison", "comparison.json", "methods", (TABLE, CURVES, SUMMARY, EACH, PAGE))


def write_comparison(place: Path, question: dict[str, Any], summaries: Sequence[Summary]) -> dict[str, Any]:
    """Write all that came of it; the same as one object."""
    answer = {"question": question, "metric": summaries[0].shown.metric, "methods": as_json(summaries)}
    write_json(place / COMPARISON.file, answer)
    for name, text in (
        (TABLE, markdown(summaries)),
        (SUMMARY, summary_csv(summaries)),
        (EACH, runs_csv(summaries)),
    ):
        write_bytes(place / name, legible(text).encode())
    if any(summary.curve for summary in summaries):
        plot_comparison(summaries, question["stream"], place / CURVES)
    else:
        (place / CURVES).unlink(missing_ok=True)
    write_bytes(place / PAGE, legible(suite_page(_report(question, summaries))).encode())
    return answer


def _report(question: dict[str, Any], summaries: Sequence[Summary]) -> SuiteReport:
    """What its page shows; the method that was named first stands out."""
    stream, shown = question["stream"], summaries[0].shown
    rows = {summary.method: tuple(summary.outcomes) for summary in summaries}
    curves = task_curves(stream, "Accuracy after each task", shown, rows, next(iter(rows)))
    return SuiteReport(
        title=f"{', '.join(rows)} on {stream}",
        command="",
        tables=(stream_table(stream, means_over(rows), shown, rows),),
        curves=() if curves is None else (curves,),
        failures=tuple(
            f"{one.method}, seed {one.seed}: {one.failure}"
            for runs in rows.values()
            for one in runs
            if one.failure is not None
        ),
    )
