"""Runs of one stream side by side: a table of their figures, and their curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .comparison import summarise
from .figures import Shown
from .measured import Curves, Heading, MeasuredCell, MeasuredTable
from .outcomes import Outcome, captioned

Rows = Mapping[str, tuple[Outcome, ...]]
"""The runs of each row: they differ in nothing but their seeds."""


def stream_table(name: str, caption: str, shown: Shown, rows: Rows) -> MeasuredTable:
    """The metrics of every row."""
    headings = [Heading(name, metric) for metric in shown.names]
    return MeasuredTable(
        name,
        caption,
        rows=tuple(rows),
        columns=tuple(headings),
        cells={(row, one): MeasuredCell(one.metric, runs) for row, runs in rows.items() for one in headings},
    )


def task_curves(name: str, caption: str, shown: Shown, rows: Rows, highlight: str = "") -> Curves | None:
    """What the leading metric sums up, after each task, as means over the runs; None where no run is finished."""
    lines = {}
    for row, runs in rows.items():
        for summary in summarise([replace(one, method=row) for one in runs], shown):
            points = zip(summary.seen, summary.curve, strict=True)
            known = tuple((float(seen), own) for seen, own in points if own is not None)
            if known:
                lines[row] = known
    if not lines:
        return None
    return Curves(
        name, captioned(caption, rows), "classes seen", f"{shown.axis} (%)", lines, highlight, outcomes=dict(rows)
    )
