"""Reports and results as terminal tables, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from statistics import fmean
from typing import Any

from rich import box
from rich import table as rich_table
from rich.text import Text

from ..runs.result import RunResult
from ..train.progress import rough
from . import summary
from .jobs import Job
from .published import Column, PaperTable
from .summary import COUNTS, SHOTS, TITLES, Mean, MetricColumns, counted
from .tables import Cell, Plot, Report, Table, mean_text

_CSV = (
    "table", "row", "column", "metric", "measured", "error", "runs", "over", "published", "published_error",
    "difference", "noise", "verdict", "note", "directories",
)  # fmt: skip


def terminal_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = (), wrap: Collection[str] = ()
) -> rich_table.Table:
    """A table for the terminal. Columns are aligned to the right and not wrapped, except those named."""
    table = rich_table.Table(box=box.SIMPLE, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        justify = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=name not in wrap, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))
    return table


# Reports


def report_markdown(report: Report, plots: Mapping[str, str]) -> str:
    """The whole report; ``plots``: the image file of each plot, by its name."""
    parts = [f"# {_escape(report.title)}\n"]
    parts += [f"{_code(report.command)}\n"] if report.command else []
    parts += [f"{_escape(note)}\n" for note in report.notes]
    if any(table.has_verdicts for table in report.tables):
        parts.append(f"{summary.WORDS}\n")
    for table in report.tables:
        parts.append(f"## {_escape(table.name)}\n\n{_escape(table.caption)}\n")
        for group, part in table.parts():
            text = _markdown_table(part)
            parts.append(text if group == table.name else f"{_escape(group)}\n\n{text}")
            parts += [_markdown_differences(part)] if any(part.row_differences()) else []
    for plot in report.plots:
        parts.append(f"## {_escape(plot.name)}\n\n{_escape(plot.caption)}\n")
        parts += [f"![{_escape(plot.name)}]({plots[plot.name]})\n"] if plot.name in plots else []
        parts.append(_markdown_points(plot))
    if report.failures:
        parts.append("## Failed\n\n" + "".join(f"- {_escape(failure)}\n" for failure in report.failures))
    return "\n".join(parts)


def _cell_texts(cell: Cell | None, has_published: bool) -> list[str]:
    """The measured value; in tables with published values also that and the difference."""
    if cell is None:
        return ["–", "–", ""] if has_published else ["–"]
    measured, difference = cell.measured, cell.difference
    texts = [cell.missing if measured is None else mean_text(measured, cell.metric)]
    if has_published:
        published = "–" if cell.published is None else mean_text(Mean(cell.published, cell.published_error))
        texts += [published, "" if difference is None else f"{difference:+.2f}"]
    return texts


def _markdown_table(part: Table) -> str:
    header = ["method"]
    for column in part.columns:
        header.append(TITLES.get(column.metric, column.metric))
        header += ["published", "difference"] if part.has_published else []
        header += ["noise"] if part.has_verdicts else []
    rows = []
    for name in part.rows:
        row = [_escape(name)]
        for column in part.columns:
            cell = part.cells.get((name, column))
            row += _cell_texts(cell, part.has_published)
            row += [(cell and cell.verdict) or ""] if part.has_verdicts else []
        rows.append(row)
    return _markdown_rows(header, rows)


def _markdown_differences(part: Table) -> str:
    """Rows minus those that they extend, measured beside published."""
    header = ["difference of rows"]
    for column in part.columns:
        header += [TITLES.get(column.metric, column.metric), "published"]
    rows = []
    for difference in part.row_differences():
        row = [_escape(difference.name)]
        for column in part.columns:
            points = difference.points.get(column)
            row += ["–", "–"] if points is None else [f"{value:+.2f}" for value in points]
        rows.append(row)
    return _markdown_rows(header, rows)


def _markdown_points(plot: Plot) -> str:
    xs = sorted({x for points in plot.lines.values() for x, _ in points})
    rows = []
    for name, points in plot.lines.items():
        means = dict(points)
        rows.append([_escape(name), *(mean_text(means[x]) if x in means else "–" for x in xs)])
    return _markdown_rows([_escape(plot.x_label), *(f"{x:g}" for x in xs)], rows)


def _markdown_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _escape(text: str) -> str:
    """Text of users, such as names of folders, that must not be taken for markup."""
    safe = " ".join(text.split())
    for sign in "\\`*_[]<>|":
        safe = safe.replace(sign, f"\\{sign}")
    return safe


def report_csv(report: Report) -> str:
    """A row for each cell of each table, then for each point of each plot; numbers unrounded."""
    rows: list[Sequence[Any]] = [_CSV]
    for table in report.tables:
        for (name, column), cell in table.cells.items():
            values = _cell_json(name, column.group, cell)
            measured = values.pop("measured") or {}
            runs = values.pop("runs")
            extra = {
                "table": table.name,
                "measured": measured.get("mean"),
                "error": measured.get("error"),
                "runs": cell.finished,
                "over": counted(cell.records) if cell.finished else None,
                "noise": cell.noise if cell.published is not None else None,
                "verdict": cell.verdict,
                "note": cell.missing,
                "directories": " ".join(runs),
            }
            rows.append([{**values, **extra}[entry] for entry in _CSV])
    for plot in report.plots:
        for name, points in plot.lines.items():
            for x, mean in points:
                rows.append([plot.name, name, f"{plot.x_label} {x:g}", plot.y_label, mean.mean, mean.error])
    return _csv(rows)


def runs_csv(report: Report) -> str:
    """A row for each run and readout: the metrics of all tables, then the curve of the leading metric, task by task."""
    metrics = dict.fromkeys(column.metric for table in report.tables for column in table.columns)
    rows, longest = [], 0
    for run in report.runs:
        curve = [] if run.result is None else run.figure(MetricColumns.of(run.result).curve)
        longest = max(longest, len(curve))
        settings = run.settings
        identity = [settings.label, settings.stream, run.key[1], settings.order_seed, settings.seed]
        rows.append([*identity, *map(run.figure, metrics), run.directory, run.failure, *curve])
    header = ["method", "stream", "readout", "order_seed", "seed", *metrics, "directory", "failure"]
    return _csv([[*header, *(f"task_{number}" for number in range(1, longest + 1))], *rows])


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    rounded = ([round(value, 6) if isinstance(value, float) else value for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(rounded)
    return text.getvalue()


def report_json(report: Report) -> dict[str, Any]:
    """For programs: tables cell by cell, and plots point by point."""
    tables = []
    for table in report.tables:
        cells = [_cell_json(row, column.group, cell) for (row, column), cell in table.cells.items()]
        tables.append({"name": table.name, "caption": table.caption, "cells": cells})
    plots = []
    for plot in report.plots:
        lines = {name: [[x, asdict(mean)] for x, mean in points] for name, points in plot.lines.items()}
        labels = {"x_label": plot.x_label, "y_label": plot.y_label}
        plots.append({"name": plot.name, "caption": plot.caption, **labels, "lines": lines})
    return {
        "title": report.title,
        "command": report.command,
        "tables": tables,
        "plots": plots,
        "failures": list(report.failures),
    }


def _cell_json(row: str, group: str, cell: Cell) -> dict[str, Any]:
    measured = cell.measured
    return {
        "row": row,
        "column": group,
        "metric": cell.metric,
        "measured": measured and asdict(measured),
        "over": counted(cell.records) if measured else None,
        "published": cell.published,
        "published_error": cell.published_error,
        "difference": cell.difference,
        "note": cell.note,
        "runs": [record.directory for record in cell.records],
    }


def report_tables(table: Table) -> Iterator[tuple[str, rich_table.Table]]:
    """A heading and a table for each stream: the measured and published values, and the difference."""
    for group, part in table.parts():
        columns = list(part.columns)
        if {column.metric for column in columns} & set(SHOTS):
            # A terminal of 80 columns has no space for all.
            columns = [column for column in columns if column.metric not in ("forgetting", *COUNTS)]
        header, wrap = ["method"], {"method", "published", "diff"}
        for column in columns:
            title = TITLES.get(column.metric, column.metric)
            header += [title, "published", "diff"] if part.has_published else [title]
            wrap |= {title} if part.has_published else set()
        rows = []
        for row in part.rows:
            cells = [part.cells.get((row, column)) for column in columns]
            rows.append([row, *(text for cell in cells for text in _cell_texts(cell, part.has_published))])
        heading = group if group == table.name else f"{table.name}, {group}"
        yield heading, terminal_table(header, rows, left={"method"}, wrap=wrap)


def job_table(jobs: Sequence[Job], states: Sequence[str], seconds: Sequence[float | None]) -> rich_table.Table:
    """A row for each run: its name, its state, and the estimated time that is left."""
    rows = []
    for job, state, left in zip(jobs, states, seconds, strict=True):
        time = "" if job.result is not None else "–" if left is None else rough(left)
        rows.append([job.name, state, time])
    return terminal_table(["run", "state", "time"], rows, left={"run", "state"}, wrap={"run", "state"})


# Results of one run

_WIDTH = 8


def title(result: RunResult) -> str:
    """What was run, in one line."""
    leading = "" if result.readout == next(iter(result.readouts)) else f":{result.readout}"
    return (
        f"{result.method}{leading} on {result.stream}, seed {result.seed}, order seed {result.order_seed}, "
        f"memory {result.settings['memory']}, {result.settings['backbone']}"
    )


def task_table(result: RunResult, tasks: Iterable[int] | None = None, header: bool = True) -> rich_table.Table:
    """A row for each task (from 1; None: all finished ones). Widths are fixed: rows printed one by one line up."""
    names, *rows = task_cells(result, tasks)
    table = rich_table.Table(box=None, show_header=header, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right", min_width=max(_WIDTH, len(name)), no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def task_cells(result: RunResult, tasks: Iterable[int] | None = None) -> list[list[str]]:
    """The same as text, header first."""
    first, *columns = _task_columns(result)
    cells = [["task", "classes", first, MetricColumns.of(result).average, *columns, "seconds"]]
    for number in tasks or range(1, len(result.tasks) + 1):
        classes, accuracies, average = _after_task(result, number)
        leading, *rest = accuracies.values()
        seconds = f"{result.per_task[number - 1].seconds:.1f}"
        cells.append([str(number), str(classes), leading, average, *rest, seconds])
    return cells


def task_line(result: RunResult, number: int) -> str:
    """The row of a task as a sentence, for output without a header."""
    classes, accuracies, average = _after_task(result, number)
    measured = ", ".join(f"{name} {accuracy}" for name, accuracy in accuracies.items())
    seconds, name = result.per_task[number - 1].seconds, MetricColumns.of(result).average
    return f"task {number} done: {classes} classes, {measured}, {name} {average}, {seconds:.1f} s"


def _task_columns(result: RunResult) -> list[str]:
    """What is measured after every task: each readout, and the leading one by accuracy and on held-out images."""
    step = MetricColumns.of(result).step
    names = _leading_first(result) if len(result.readouts) > 1 else [step]
    names += [] if step == "accuracy" else ["accuracy"]
    validated = any("validation" in task for task in result.figure("per_task"))
    return [*names, "validation"] if validated else names


def _after_task(result: RunResult, number: int) -> tuple[int, dict[str, str], str]:
    """After this task: the number of classes, the measured values, and the average of the leading readout so far."""
    curve = MetricColumns.of(result).curve
    values = [result.figure(curve, readout)[number - 1] for readout in _leading_first(result)]
    values += [] if curve == "curve" else [result.figure("curve")[number - 1]]
    values.append(result.figure("per_task")[number - 1].get("validation"))
    measured = dict(zip(_task_columns(result), map(_number, values), strict=False))
    so_far = [value for value in result.figure(curve)[:number] if value is not None]
    classes = list(accumulate(result.tasks))[number - 1]
    return classes, measured, _number(fmean(so_far) if so_far else None)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _leading_first(result: RunResult) -> list[str]:
    """The readouts, first the one that leads."""
    return list(dict.fromkeys([result.readout, *result.readouts]))


def summary_table(result: RunResult) -> rich_table.Table:
    """The metrics that papers report, for every readout."""
    header, *rows = summary_cells(result)
    return terminal_table(header, rows, left={"readout"})


def summary_cells(result: RunResult) -> list[list[str]]:
    """The same as text, header first."""
    several = len(result.readouts) > 1
    names = MetricColumns.of(result).names
    cells = [[*(["readout"] if several else []), *(TITLES.get(name, name) for name in names), "seconds"]]
    for readout in _leading_first(result):
        row = [_number(result.figure(name, readout)) for name in names]
        cells.append([*([readout] if several else []), *row, f"{result.seconds:.1f}"])
    return cells


# Lists, and tables of the paper


def entries_table(entries: Sequence[dict[str, Any]], hidden: Collection[str] = ()) -> rich_table.Table:
    """Entries of a list, a column for each of their properties but the hidden ones."""
    names = [name for name in entries[0] if name not in hidden]
    text = {
        name
        for name in names
        if not all(isinstance(entry[name], int) and not isinstance(entry[name], bool) for entry in entries)
    }
    # Names are what the reader will type: they are never cut or wrapped.
    rows = [[_cell(entry[name]) for name in names] for entry in entries]
    return terminal_table(names, rows, left=text, wrap={*names} - {"name"})


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


_METRICS = {"avg": "Avg", "last": "Last"}
_DATASETS = {"cifar100": "CIFAR-100", "imagenet100": "ImageNet-100", "imagenet1000": "ImageNet-1000"}


def published_tables(table: PaperTable) -> Iterator[tuple[str, rich_table.Table]]:
    """A heading and a table for each dataset and memory, so that columns need no more than protocol and metric."""
    for dataset, memory in dict.fromkeys((column.dataset, column.memory) for column in table.columns):
        columns = [column for column in table.columns if (column.dataset, column.memory) == (dataset, memory)]
        about = f"{_DATASETS[dataset]}, memory {memory}, {columns[0].backbone}, augmentation {columns[0].augment}"
        header = [f"{column.protocol}-{column.steps}\n{_METRICS[column.metric]}" for column in columns]
        rows = [[row, *(_published(table, row, column) for column in columns)] for row in table.rows]
        yield about, terminal_table(["method", *header], rows, left={"method"}, wrap=header)


def _published(table: PaperTable, row: str, column: Column) -> str:
    value = table.cells[row, column]
    return "–" if value.value is None else mean_text(Mean(value.value, value.error))
