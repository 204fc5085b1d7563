"""A comparison's directory: what was asked, tables for readers and programs, and the curves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..disk import leftovers, locked, make_directory, remove, write_bytes, write_json
from ..errors import UserError
from ..reading import read_json
from ..report.comparison import Summary, as_json, markdown, runs_csv, summary_csv
from ..report.plots import plot_comparison
from ..runs.begin import RUNS

COMPARISON, TABLE, CURVES, LOGS, _LOCK = "comparison.json", "table.md", "curves.png", "logs", ".lock"
SUMMARY, EACH = "summary.csv", "runs.csv"


def find_place(wanted: Path, question: dict[str, Any]) -> Path:
    """The directory of the same question, asked before; else one that is not taken: the name, or with a number."""
    place, number = wanted, 2
    while place.exists() and _question(place) != question:
        place, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return place


@contextmanager
def open_folder(place: Path, question: dict[str, Any]) -> Iterator[None]:
    """Within the block the directory is this process's own; what is asked is written down before there is an answer.

    An answer that is there stays until there is another. One to another question is not touched.
    """
    _require_room(place, question)
    make_directory(place)
    with locked(place / _LOCK, f"{place} is in use by another comparison; wait for it or stop it"):
        # Again: what another process has done here since is done.
        _require_room(place, question)
        for file in leftovers(place):
            remove(file)
        if _question(place) is None:
            write_json(place / COMPARISON, {"question": question, "methods": []})
        yield


def write_folder(place: Path, question: dict[str, Any], summaries: Sequence[Summary]) -> dict[str, Any]:
    """Write all that came of it; the same as one object."""
    answer = {"question": question, "metric": summaries[0].shown.metric, "methods": as_json(summaries)}
    write_json(place / COMPARISON, answer)
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


def _question(place: Path) -> dict[str, Any] | None:
    try:
        found = read_json(place / COMPARISON)
    except UserError:
        return None
    asked = found.get("question") if isinstance(found, dict) else None
    if not isinstance(asked, dict) or type(asked.get("seeds")) is not int:
        return None
    methods = asked.get("methods")
    return asked if isinstance(methods, list) and all(isinstance(name, str) for name in methods) else None


def _require_room(place: Path, question: dict[str, Any]) -> None:
    """A directory takes the answer if it holds nothing but runs, or an answer of which the new one has every row.

    Where the question that was asked is lost or damaged, what is left of the answer is made again.
    """
    if not place.exists():
        return
    asked = _question(place)
    if asked is None:
        ours: tuple[str | Path, ...] = (RUNS, LOGS, _LOCK)
        if os.path.lexists(place / _LOCK):
            ours += (COMPARISON, TABLE, CURVES, SUMMARY, EACH)
        known = {*leftovers(place), *(place / name for name in ours)}
        if not place.is_dir() or set(place.iterdir()) - known:
            raise UserError(f"{place} exists and is not an empty directory; choose another --out")
    elif not _covers(question, asked):
        methods = ", ".join(asked["methods"])
        raise UserError(f"{place} holds another comparison, of {methods}; choose another --out")


def _covers(question: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether one question asks all that another did: the same, perhaps with more methods or seeds."""
    if not set(asked["methods"]) <= set(question["methods"]) or asked["seeds"] > question["seeds"]:
        return False
    return {**asked, "methods": question["methods"], "seeds": question["seeds"]} == question
