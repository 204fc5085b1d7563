"""Methods side by side: the mean of each figure over the seeds and its standard error, as tables of several formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

FIGURES = {"avg": 2, "last": 2, "forgetting": 2, "parameters": 0, "seconds": 0}
"""What is compared, as ``result.json`` names it, and the decimals that are shown; where there are none, no error is."""
_TITLES = {"avg": "Avg", "last": "Last"}


@dataclass(frozen=True)
class Outcome:
    """One run of a comparison: its result, or why there is none."""

    method: str
    """As it was named, perhaps with a readout."""
    seed: int
    directory: str
    result: dict[str, Any] | None
    failure: str | None = None


@dataclass(frozen=True)
class Figure:
    """A mean over seeds and its standard error; of a single value there is no error."""

    mean: float
    error: float | None


@dataclass(frozen=True)
class Summary:
    """One method of a comparison, over the seeds that were finished."""

    method: str
    readout: str | None
    """The one whose figures these are; None where no seed was finished."""
    figures: dict[str, Figure | None]
    curve: list[Figure]
    seen: list[int]
    """Classes seen at each point of the curve."""
    outcomes: list[Outcome]

    @property
    def note(self) -> str:
        """Which runs failed, and why the first of them did."""
        failed = [outcome for outcome in self.outcomes if outcome.failure is not None]
        if not failed:
            return ""
        some = "" if len(failed) == len(self.outcomes) else f"seed {', '.join(str(one.seed) for one in failed)} "
        return f"{some}failed: {failed[0].failure}"


def figure(values: Sequence[float]) -> Figure:
    """Mean and s / √n, where s is the sample's standard deviation (divided by n − 1).

    >>> figure([1.0, 2.0, 6.0])
    Figure(mean=3.0, error=1.5275252316519468)
    """
    return Figure(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def summarise(outcomes: Sequence[Outcome]) -> list[Summary]:
    """A summary for every method, in the order in which they come."""
    methods = dict.fromkeys(outcome.method for outcome in outcomes)
    return [_summary(name, [outcome for outcome in outcomes if outcome.method == name]) for name in methods]


def _summary(method: str, outcomes: list[Outcome]) -> Summary:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    figures: dict[str, Figure | None] = {}
    for name in FIGURES:
        values = [result[name] for result in results if result[name] is not None]
        figures[name] = figure(values) if values else None
    curve = [figure(values) for values in zip(*(result["curve"] for result in results), strict=True)]
    sizes = results[0]["tasks"][: len(curve)] if results else []
    seen = [sum(sizes[:number]) for number in range(1, len(curve) + 1)]
    return Summary(method, results[0]["readout"] if results else None, figures, curve, seen, outcomes)


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """For a terminal of 80 columns, where sentences have no room: notes are the reader's own business."""
    header, *rows = _cells(summaries)
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name != "method")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def markdown(summaries: Sequence[Summary]) -> str:
    """The same as a Markdown table; notes have a column if there are any."""
    header, *rows = _cells(summaries)
    rule = ["---", *("---:" for _ in header[1:])]
    lines = [header, rule, *rows]
    if any(summary.note for summary in summaries):
        notes = ["note", "---", *(summary.note.replace("|", "/") for summary in summaries)]
        lines = [[*line, note] for line, note in zip(lines, notes, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summary_csv(summaries: Sequence[Summary]) -> str:
    """A row per method: means and errors."""
    columns = [column for name in FIGURES for column in (name, f"{name}_error")]
    rows = [
        [
            summary.method,
            summary.readout,
            sum(outcome.result is not None for outcome in summary.outcomes),
            *(value for name in FIGURES for value in _numbers(summary.figures[name])),
            summary.note,
        ]
        for summary in summaries
    ]
    return _csv([["method", "readout", "runs", *columns, "note"], *rows])


def runs_csv(summaries: Sequence[Summary]) -> str:
    """A row per method and seed; the curve's points are the last columns, named by the classes seen."""
    seen = max((summary.seen for summary in summaries), key=len)
    rows: list[list[Any]] = [["method", "seed", "readout", *FIGURES, "directory", "failure", *seen]]
    for outcome in (outcome for summary in summaries for outcome in summary.outcomes):
        own = outcome.result or {"readout": None, "curve": [], **dict.fromkeys(FIGURES)}
        figures = [own[name] for name in FIGURES]
        row = [outcome.method, outcome.seed, own["readout"], *figures, outcome.directory, outcome.failure]
        rows.append([*row, *own["curve"]])
    return _csv(rows)


def as_json(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """A list of objects, one per method, with its runs."""
    return [
        {
            "method": summary.method,
            "readout": summary.readout,
            **{name: own and asdict(own) for name, own in summary.figures.items()},
            "seen": summary.seen,
            "curve": [asdict(point) for point in summary.curve],
            "runs": [
                {
                    "seed": outcome.seed,
                    "directory": outcome.directory,
                    "failure": outcome.failure,
                    **{name: outcome.result and outcome.result[name] for name in (*FIGURES, "curve")},
                }
                for outcome in summary.outcomes
            ],
        }
        for summary in summaries
    ]


def _cells(summaries: Sequence[Summary]) -> list[list[str]]:
    """The table as text, header first. A readout is added where it is not simply the classifier and not named."""
    rows = [["method", *(_TITLES.get(name, name) for name in FIGURES)]]
    for summary in summaries:
        told = ":" in summary.method or summary.readout in (None, "classifier")
        readout = "" if told else f", {summary.readout}"
        figures = [_shown(summary.figures[name], decimals) for name, decimals in FIGURES.items()]
        rows.append([summary.method + readout, *figures])
    return rows


def _shown(own: Figure | None, decimals: int) -> str:
    if own is None:
        return "–"
    error = "" if own.error is None or not decimals else f" ±{own.error:.{decimals}f}"
    return f"{own.mean:,.{decimals}f}{error}"


def _numbers(own: Figure | None) -> tuple[float | None, float | None]:
    return (None, None) if own is None else (own.mean, own.error)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    """Numbers with as many digits as they can be told apart by, and none of rounding noise."""
    text = io.StringIO()
    tidy = ([round(entry, 6) if isinstance(entry, float) else entry for entry in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(tidy)
    return text.getvalue()
