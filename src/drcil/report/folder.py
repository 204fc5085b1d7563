"""A comparison's directory: what was asked, tables for readers and programs, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..disk import read_json, write_bytes, write_json
from ..errors import UserError
from .comparison import Summary, as_json, markdown, runs_csv, summary_csv
from .plots import plot_comparison

COMPARISON, TABLE, CURVES = "comparison.json", "table.md", "curves.png"


def find_place(wanted: Path, question: dict[str, Any]) -> Path:
    """The directory of the same question, asked before; else one that is not taken: the name, or with a number."""
    place, number = wanted, 2
    while place.exists() and _question(place) != question:
        place, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return place


def open_folder(place: Path, question: dict[str, Any]) -> None:
    """Write down what is asked, before there is an answer."""
    write_json(place / COMPARISON, {"question": question, "methods": []})


def write_folder(place: Path, question: dict[str, Any], summaries: Sequence[Summary]) -> dict[str, Any]:
    """Write all that came of it; the same as one object."""
    answer = {"question": question, "methods": as_json(summaries)}
    write_json(place / COMPARISON, answer)
    for name, text in (
        (TABLE, markdown(summaries)),
        ("summary.csv", summary_csv(summaries)),
        ("runs.csv", runs_csv(summaries)),
    ):
        write_bytes(place / name, text.encode())
    if any(summary.curve for summary in summaries):
        plot_comparison(summaries, question["stream"], place / CURVES)
    return answer


def _question(place: Path) -> Any:
    try:
        found = read_json(place / COMPARISON)
    except UserError:
        return None
    return found.get("question") if isinstance(found, dict) else None
