"""A suite for the terminal: measured beside published, and what is going to be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..report.figures import TITLES
from ..report.measured import MeasuredTable
from ..report.progress import rough
from ..report.written import cell_words
from .entries import Entry


def measured_tables(table: MeasuredTable) -> Iterator[tuple[str, Table]]:
    """A heading and a table for each stream: what was measured, what was published, and the difference."""
    for group, part in table.parts():
        shown = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
        shown.add_column("method", overflow="fold")
        for column in part.columns:
            shown.add_column(TITLES.get(column.metric, column.metric), justify="right")
            for name in ("published", "diff") if part.beside else ():
                shown.add_column(name, justify="right")
        for row in part.rows:
            cells = [part.cells.get((row, column)) for column in part.columns]
            shown.add_row(Text(row), *(Text(words) for cell in cells for words in cell_words(cell, part.beside)))
        yield f"{table.name}, {group}", shown


def plan_table(entries: Sequence[Entry], states: Sequence[str], seconds: Sequence[float | None]) -> Table:
    """A row for each run: what it is, what will become of it, and about how long that takes."""
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for entry, state, own in zip(entries, states, seconds, strict=True):
        time = "" if entry.result is not None else "–" if own is None else rough(own)
        table.add_row(Text(entry.name), Text(state), Text(time))
    return table
