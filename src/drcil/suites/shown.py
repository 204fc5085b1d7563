"""A suite for the terminal: measured beside published, and what is going to be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..report.comparison import Figure
from ..report.figures import TITLES
from ..report.measured import MeasuredCell, MeasuredTable
from ..report.progress import rough
from .entries import Entry


def measured_tables(table: MeasuredTable) -> Iterator[tuple[str, Table]]:
    """A heading and a table for each stream: what was measured, what was published, and the difference."""
    for group in dict.fromkeys(column.group for column in table.columns):
        columns = [column for column in table.columns if column.group == group]
        own = {at: cell for at, cell in table.cells.items() if at[1].group == group}
        beside = any(cell.published is not None for cell in own.values())
        shown = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
        shown.add_column("method", overflow="fold")
        for column in columns:
            shown.add_column(TITLES.get(column.metric, column.metric), justify="right")
            for name in ("published", "diff") if beside else ():
                shown.add_column(name, justify="right")
        for row in table.rows:
            if any((row, column) in own for column in columns):
                cells = [own.get((row, column)) for column in columns]
                shown.add_row(Text(row), *(Text(words) for cell in cells for words in _words(cell, beside)))
        yield f"{table.name}, {group}", shown


def _words(cell: MeasuredCell | None, beside: bool) -> list[str]:
    if cell is None:
        return ["–", "–", ""] if beside else ["–"]
    measured, difference = cell.measured, cell.difference
    failed = any(one.failure is not None for one in cell.outcomes)
    nothing = cell.note or ("failed" if failed else "–")
    words = [nothing if measured is None else _figure(measured)]
    if beside:
        published = "–" if cell.published is None else _figure(Figure(cell.published, cell.published_error))
        words += [published, "" if difference is None else f"{difference:+.2f}"]
    return words


def _figure(own: Figure) -> str:
    return f"{own.mean:.2f}" if own.error is None else f"{own.mean:.2f} ±{own.error:.2f}"


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
