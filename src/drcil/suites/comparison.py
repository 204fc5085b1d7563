"""A comparison's directory: tables for readers and programs, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..disk import write_bytes, write_json
from ..report.comparison import Summary, as_json, markdown, runs_csv, summary_csv
from ..report.plots import plot_comparison
from .folder import Folder

TABLE, CURVES, SUMMARY, EACH = "table.md", "curves.png", "summary.csv", "runs.csv"
COMPARISON = Folder("comparison", "comparison.json", "methods", (TABLE, CURVES, SUMMARY, EACH))


def write_comparison(place: Path, question: dict[str, Any], summaries: Sequence[Summary]) -> dict[str, Any]:
    """Write all that came of it; the same as one object."""
    answer = {"question": question, "metric": summaries[0].shown.metric, "methods": as_json(summaries)}
    write_json(place / COMPARISON.file, answer)
    for name, text in (
        (TABLE, markdown(summaries)),
        (SUMMARY, summary_csv(summaries)),
        (EACH, runs_csv(summaries)),
    ):
        write_bytes(place / name, text.encode())
    if any(summary.curve for summary in summaries):
        plot_comparison(summaries, question["stream"], place / CURVES)
    else:
        (place / CURVES).unlink(missing_ok=True)
    return answer
