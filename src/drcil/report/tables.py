"""Tables for the terminal, from results as they stand in ``result.json``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .figures import TITLES, figure_of, shown_of

_WIDTH = 8


def title(result: dict[str, Any]) -> str:
    """What was run, in one line."""
    own = result["settings"]
    leading = "" if result["readout"] == next(iter(result["readouts"])) else f":{result['readout']}"
    return (
        f"{result['method']}{leading} on {result['stream']}, seed {result['seed']}, order seed {result['order_seed']}, "
        f"memory {own['memory']}, {own['backbone']}"
    )


def task_table(result: dict[str, Any], tasks: Iterable[int] | None = None, header: bool = True) -> Table:
    """A row per task (from 1; None: all that are finished). Widths are fixed: rows printed one by one line up."""
    names, *rows = task_cells(result, tasks)
    table = Table(box=None, show_header=header, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right", min_width=max(_WIDTH, len(name)), no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def task_cells(result: dict[str, Any], tasks: Iterable[int] | None = None) -> list[list[str]]:
    """The same as text, header first."""
    first, *others = _measured(result)
    cells = [["task", "classes", first, shown_of(result).average, *others, "seconds"]]
    for number in tasks or range(1, len(result["curve"]) + 1):
        seen, accuracies, average = _until(result, number)
        leading, *rest = accuracies.values()
        seconds = f"{result['per_task'][number - 1]['seconds']:.1f}"
        cells.append([str(number), str(seen), leading, average, *rest, seconds])
    return cells


def task_line(result: dict[str, Any], number: int) -> str:
    """A task's row where rows are not under a header."""
    seen, accuracies, average = _until(result, number)
    measured = ", ".join(f"{name} {accuracy}" for name, accuracy in accuracies.items())
    seconds = result["per_task"][number - 1]["seconds"]
    named = shown_of(result).average
    return f"task {number} done: {seen} classes, {measured}, {named} {average}, {seconds:.1f} s"


def _measured(result: dict[str, Any]) -> list[str]:
    """What is measured after every task: each readout, and the leading one by accuracy and on held-out images."""
    step = shown_of(result).step
    names = list(_readouts(result)) if len(result["readouts"]) > 1 else [step]
    names += [] if step == "accuracy" else ["accuracy"]
    return [*names, "validation"] if any("validation" in task for task in result["per_task"]) else names


def _until(result: dict[str, Any], number: int) -> tuple[int, dict[str, str], str]:
    """After this task: the classes seen, what was measured, and the leading readout's average so far."""
    curve = shown_of(result).curve
    accuracies = [figures[curve][number - 1] for figures in _readouts(result).values()]
    accuracies += [] if curve == "curve" else [result["curve"][number - 1]]
    accuracies.append(result["per_task"][number - 1].get("validation"))
    measured = dict(zip(_measured(result), map(_figure, accuracies), strict=False))
    so_far = [value for value in figure_of(result, curve)[:number] if value is not None]
    seen = list(accumulate(result["tasks"]))[number - 1]
    return seen, measured, _figure(fmean(so_far) if so_far else None)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _readouts(result: dict[str, Any]) -> dict[str, Any]:
    """The figures of every readout, first of the one that leads."""
    return {result["readout"]: None, **result["readouts"]}


def summary_table(result: dict[str, Any]) -> Table:
    """The figures that papers report, for every readout."""
    header, *rows = summary_cells(result)
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name, justify="left" if name == "readout" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def summary_cells(result: dict[str, Any]) -> list[list[str]]:
    """The same as text, header first."""
    several = len(result["readouts"]) > 1
    names = shown_of(result).names
    cells = [[*(["readout"] if several else []), *(TITLES.get(name, name) for name in names), "seconds"]]
    for readout, figures in _readouts(result).items():
        row = [_figure(figures[name]) for name in names]
        cells.append([*([readout] if several else []), *row, f"{result['seconds']:.1f}"])
    return cells


def entries_table(entries: Sequence[dict[str, Any]], hidden: Collection[str] = ()) -> Table:
    """Things known by name, a column for each of their properties but the hidden ones."""
    names = [name for name in entries[0] if name not in hidden]
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in names:
        numbers = all(isinstance(entry[name], int) and not isinstance(entry[name], bool) for entry in entries)
        # Names are what the reader will type: they are never cut or wrapped.
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name == "name")
    for entry in entries:
        table.add_row(*(Text(_cell(entry[name])) for name in names))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)
