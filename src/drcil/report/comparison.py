"""Methods side by side: the mean of each figure over the seeds and its standard error, as tables of several formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .figures import PLAIN, SHOTS, TITLES, Shown, figure_of
from .outcomes import Figure, Outcome, figure, independent

_COUNTS = ("parameters", "seconds")
"""What is compared beside metrics: whole numbers, shown without an error."""


@dataclass(frozen=True)
class Summary:
    """One method of a comparison, over the runs that were finished."""

    method: str
    readout: str | None
    """The one whose figures these are; None where no seed was finished."""
    figures: dict[str, Figure | None]
    """By the names of metrics, first the one that leads."""
    curve: list[Figure | None]
    """What the leading metric sums up, after each task; none where there is nothing to measure it on."""
    seen: list[int]
    """Classes seen at each point of the curve."""
    outcomes: list[Outcome]
    shown: Shown = PLAIN

    @property
    def note(self) -> str:
        """Which runs failed, and why the first of them did."""
        failed = [outcome for outcome in self.outcomes if outcome.failure is not None]
        if not failed:
            return ""
        some = "" if len(failed) == len(self.outcomes) else f"seed {', '.join(str(one.seed) for one in failed)} "
        return f"{some}failed: {failed[0].failure}"


def summarise(outcomes: Sequence[Outcome], shown: Shown = PLAIN) -> list[Summary]:
    """A summary for every method, in the order in which they come."""
    methods = dict.fromkeys(outcome.method for outcome in outcomes)
    return [_summary(name, [outcome for outcome in outcomes if outcome.method == name], shown) for name in methods]


def _summary(method: str, outcomes: list[Outcome], shown: Shown) -> Summary:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    figures: dict[str, Figure | None] = {}
    for name in (*shown.names, *_COUNTS):
        values = independent(outcomes, (one.metric(name) for one in outcomes))
        figures[name] = figure(values) if values else None
    lines = [one.metric(shown.curve) or () for one in outcomes]
    curve = [
        None
        if any(line and line[at] is None for line in lines)
        else figure(independent(outcomes, (line[at] if line else None for line in lines)))
        for at in range(max(map(len, lines)))
    ]
    sizes = results[0]["tasks"][: len(curve)] if results else []
    seen = [sum(sizes[:number]) for number in range(1, len(curve) + 1)]
    return Summary(method, results[0]["readout"] if results else None, figures, curve, seen, outcomes, shown)


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """For a terminal of 80 columns, where sentences have no room: notes are the reader's own business."""
    # Where the shots are shown there is no room for all.
    hidden = ("forgetting", *_COUNTS) if summaries[0].shown.long_tailed else ()
    header, *rows = _cells(summaries, hidden)
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        if name == "method":
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
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
    names = list(summaries[0].figures)
    columns = [column for name in names for column in (name, f"{name}_error")]
    rows = [
        [
            summary.method,
            summary.readout,
            sum(outcome.result is not None for outcome in summary.outcomes),
            *(value for name in names for value in _numbers(summary.figures[name])),
            summary.note,
        ]
        for summary in summaries
    ]
    return _csv([["method", "readout", "runs", *columns, "note"], *rows])


def runs_csv(summaries: Sequence[Summary]) -> str:
    """A row per method and seed; the curve's points are the last columns, named by it and the classes seen."""
    seen = max((summary.seen for summary in summaries), key=len)
    names, curve = list(summaries[0].figures), summaries[0].shown.curve
    points = [f"{curve}_{classes}" for classes in seen]
    rows: list[list[Any]] = [["method", "seed", "readout", *names, "directory", "failure", *points]]
    for outcome in (outcome for summary in summaries for outcome in summary.outcomes):
        own = outcome.result
        figures = [own and figure_of(own, name) for name in names]
        row = [outcome.method, outcome.seed, own and own["readout"], *figures, outcome.directory, outcome.failure]
        rows.append([*row, *(figure_of(own, curve) if own else [])])
    return _csv(rows)


def as_json(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """A list of objects, one per method, with its runs."""
    return [
        {
            "method": summary.method,
            "readout": summary.readout,
            **{name: own and asdict(own) for name, own in summary.figures.items()},
            "seen": summary.seen,
            "curve": [point and asdict(point) for point in summary.curve],
            "runs": [
                {
                    "seed": outcome.seed,
                    "directory": outcome.directory,
                    "failure": outcome.failure,
                    **{name: outcome.result and figure_of(outcome.result, name) for name in summary.figures},
                    "curve": outcome.result and figure_of(outcome.result, summary.shown.curve),
                }
                for outcome in summary.outcomes
            ],
        }
        for summary in summaries
    ]


def _cells(summaries: Sequence[Summary], hidden: Collection[str] = ()) -> list[list[str]]:
    """The table as text, header first. A readout is added where it is not simply the classifier and not named."""
    names = [name for name in summaries[0].figures if name not in hidden]
    rows = [["method", *(TITLES.get(name, name) for name in names)]]
    for summary in summaries:
        told = ":" in summary.method or summary.readout in (None, "classifier")
        readout = "" if told else f", {summary.readout}"
        figures = [_shown(name, summary.figures[name]) for name in names]
        rows.append([summary.method + readout, *figures])
    return rows


def _shown(name: str, own: Figure | None) -> str:
    """With an error, but for whole numbers and for the shots, of which there are many."""
    if own is None:
        return "–"
    decimals = 0 if name in _COUNTS else 2
    error = "" if own.error is None or name in (*_COUNTS, *SHOTS) else f" ±{own.error:.{decimals}f}"
    return f"{own.mean:,.{decimals}f}{error}"


def _numbers(own: Figure | None) -> tuple[float | None, float | None]:
    return (None, None) if own is None else (own.mean, own.error)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    """Numbers with as many digits as they can be told apart by, and none of rounding noise."""
    text = io.StringIO()
    tidy = ([round(entry, 6) if isinstance(entry, float) else entry for entry in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(tidy)
    return text.getvalue()
