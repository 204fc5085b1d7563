"""``Report``, ``Table``, ``Cell``, ``Plot``: measured values beside published ones; reports of stored runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from ..errors import UserError, unknown_name
from ..runs.evidence import RunRecord
from ..runs.execution import with_new_settings
from ..runs.plan import canonical_settings
from ..runs.result import RunResult, leading_metric
from ..settings import dotted
from ..streams.protocols import known_tasks
from .summary import (
    COUNTS,
    SHOTS,
    Mean,
    MetricColumns,
    independent,
    mean_of,
    means_over,
    noise_of_means,
    noise_of_one,
    with_means,
)

Verdict = Literal["within noise", "outside noise", "one run", "one class order"]
"""On a difference. A single run, or one of several class orders, has no error to judge by."""
Rows = Mapping[str, tuple[RunRecord, ...]]
"""The runs of each row: they differ in nothing but their seeds."""


@dataclass(frozen=True)
class Heading:
    """A column of a table."""

    group: str
    """What it shares with its neighbours: stream, memory and augmentation, as text."""
    metric: str


@dataclass(frozen=True)
class Cell:
    """A value as it was published, if it was, and as its runs measured it."""

    metric: str
    records: tuple[RunRecord, ...]
    """The runs whose mean it is: class orders, seeds. None of them may be finished yet."""
    published: float | None = None
    published_error: float | None = None
    """The published standard error."""
    note: str = ""
    """Why nothing can be measured, such as missing data."""
    published_orders: int = 1
    """The number of class orders whose mean was published."""
    full_budget: bool = True
    """Whether the runs have the budget of the published ones. A smaller one is not expected to reach the value."""

    @cached_property
    def values(self) -> list[float]:
        """The values of mean and error: one for each class order if there are several, else for each seed."""
        return independent(self.records, (record.figure(self.metric) for record in self.records))

    @property
    def measured(self) -> Mean | None:
        """The mean over the finished runs, with its standard error; None if there are none."""
        return mean_of(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, in points."""
        measured = self.measured
        return None if measured is None or self.published is None else measured.mean - self.published

    @property
    def noise(self) -> float | None:
        """How far the difference may be from zero by chance, in 19 of 20 cases; None if that cannot be estimated.

        A value that was published without an error is taken to be of a single run that varies as ours do.
        """
        measured, runs = self.measured, len(self.values)
        if measured is None or measured.error is None or not self.full_budget:
            return None
        if self.published_error is None:
            return noise_of_one(measured.error, runs)
        return noise_of_means(measured.error, runs, self.published_error, self.published_orders)

    @property
    def verdict(self) -> Verdict | None:
        """Whether the difference may be chance; None if there is none, or if budgets differ."""
        difference, noise = self.difference, self.noise
        if difference is None or not self.full_budget:
            return None
        if noise is None:
            return "one run" if self.finished == 1 else "one class order"
        return "within noise" if abs(difference) <= noise else "outside noise"

    @property
    def finished(self) -> int:
        """The number of runs that have a result."""
        return sum(record.result is not None for record in self.records)

    @property
    def missing(self) -> str:
        """Why there is no value, in a word or two; empty if there is one."""
        if self.measured is not None:
            return ""
        if self.finished:
            return "–"
        return self.note or ("failed" if any(record.failure is not None for record in self.records) else "not run")


@dataclass(frozen=True)
class RowDifference:
    """A row of a table minus another, as measured and as published."""

    row: str
    base: str
    points: Mapping[Heading, tuple[float, float]]

    @property
    def name(self) -> str:
        return f"{self.row} − {self.base}"


@dataclass(frozen=True)
class Table:
    """A table of the paper or of an experiment, with measured values."""

    name: str
    caption: str
    cells: Mapping[tuple[str, Heading], Cell]
    """By row and column; a cell that the table does not have is absent."""

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> tuple[Heading, ...]:
        return tuple(dict.fromkeys(column for _, column in self.cells))

    def parts(self) -> Iterator[tuple[str, Table]]:
        """The table of each group of columns, with the rows that have a value there."""
        for group in dict.fromkeys(column.group for column in self.columns):
            cells = {at: cell for at, cell in self.cells.items() if at[1].group == group}
            yield group, Table(self.name, self.caption, cells)

    @property
    def has_published(self) -> bool:
        """Whether there are published values."""
        return any(cell.published is not None for cell in self.cells.values())

    @property
    def has_verdicts(self) -> bool:
        """Whether any difference is judged."""
        return any(cell.verdict is not None for cell in self.cells.values())

    def row_differences(self) -> Iterator[RowDifference]:
        """Rows minus the row that their name extends: ``MAF+DRC`` minus ``MAF``.

        These can be compared with the published differences even where budgets differ.
        """
        for row in self.rows:
            base = max((other for other in self.rows if other != row and row.startswith(other)), key=len, default=None)
            if base is None:
                continue
            points = {}
            for column in self.columns:
                pair = [cell for cell in (self.cells.get((name, column)) for name in (row, base)) if cell is not None]
                measured = [cell.measured.mean for cell in pair if cell.measured is not None]
                published = [cell.published for cell in pair if cell.published is not None]
                if len(measured) == len(published) == 2:
                    points[column] = (measured[0] - measured[1], published[0] - published[1])
            if points:
                yield RowDifference(row, base, points)


@dataclass(frozen=True)
class Plot:
    """Several lines: accuracy after each task, or a value against a setting."""

    name: str
    caption: str
    x_label: str
    y_label: str
    lines: Mapping[str, tuple[tuple[float, Mean], ...]]
    """By name: points from left to right."""
    highlight: str = ""
    """The line that stands out."""
    percent: bool = True
    """Whether values are percentages."""
    records: Rows = field(default_factory=dict)
    """The runs of each line."""


@dataclass(frozen=True)
class Report:
    """Tables and plots of runs."""

    title: str
    command: str
    """The command that makes or continues it; empty if there is none."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    failures: tuple[str, ...] = ()
    """A sentence for each run that failed, with its log."""
    notes: tuple[str, ...] = ()
    """What a reader should know, a sentence each."""

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of its tables and plots, each once for each readout."""
        cells = [cell.records for table in self.tables for cell in table.cells.values()]
        lines = [records for plot in self.plots for records in plot.records.values()]
        return list({record.key: record for records in (*cells, *lines) for record in records}.values())


def mean_text(mean: Mean, metric: str = "") -> str:
    """A mean with its error; counts and shots without it.

    >>> mean_text(Mean(73.971, 0.128)), mean_text(Mean(73.971, None)), mean_text(Mean(12345.6, 1.0), "seconds")
    ('73.97 ±0.13', '73.97', '12,346')
    """
    if metric in COUNTS:
        return f"{mean.mean:,.0f}"
    error = "" if mean.error is None or metric in SHOTS else f" ±{mean.error:.2f}"
    return f"{mean.mean:.2f}{error}"


def task_plot(name: str, caption: str, columns: MetricColumns, rows: Rows, highlight: str = "") -> Plot | None:
    """The curve of the leading metric after each task, as means over runs; None if no run has a result."""
    lines = {}
    for row, records in rows.items():
        curves = [record.figure(columns.curve) or () for record in records]
        classes = accumulate(next((record.result.tasks for record in records if record.result is not None), ()))
        points = []
        for position, class_count in zip(range(max(map(len, curves), default=0)), classes, strict=False):
            values = [curve[position] if curve else None for curve in curves]
            if not any(curve and value is None for curve, value in zip(curves, values, strict=True)):
                points.append((float(class_count), mean_of(independent(records, values))))
        if points:
            lines[row] = tuple(points)
    if not lines:
        return None
    label = f"{columns.axis} (%)"
    return Plot(name, with_means(caption, rows), "classes seen", label, lines, highlight, records=dict(rows))


def budget_text(result: RunResult, tasks: int | None = None) -> str:
    """The budget of a run: profile, epochs, image size, tasks (None: those that are finished)."""
    settings = result.settings
    parts = [f"profile {result.profile}"]
    scale = settings.get("epochs_scale", 1.0)
    parts += [] if scale == 1.0 else [f"{scale * 100:.4g} % of the epochs"]
    parts += [f"schedule {settings['schedule']}"] if settings.get("schedule") else []
    parts += [f"images of {settings['image_size']} pixels"] if settings.get("image_size") else []
    tasks = tasks or len(result.tasks)
    return ", ".join([*parts, f"{tasks} task{'' if tasks == 1 else 's'}"])


# Reports of stored runs

_SHARED = {"format", "method", "stream", "profile", "epochs_scale", "schedule", "image_size", "seed", "order_seed"}
"""Settings that the runs of a table or row have in common, and seeds."""


def group_runs(records: Sequence[RunRecord]) -> dict[tuple[str, str], Rows]:
    """By stream and budget: the runs that can be compared, in rows. All records must have a result."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        assert record.result is not None
        budget = budget_text(record.result, _planned_tasks(record))
        groups.setdefault((record.settings.stream, budget), []).append(record)
    return {key: _rows(members) for key, members in groups.items()}


def report_runs(
    records: Sequence[RunRecord], command: str = "", highlight: str = "", notes: Sequence[str] = ()
) -> Report:
    """The report of stored runs; ``highlight``: the row that stands out in plots."""
    groups = group_runs(records)
    names = {row for rows in groups.values() for row in rows}
    if highlight and highlight not in names:
        raise unknown_name("row", highlight, names)
    tables, plots = [], []
    for (stream, budget), rows in groups.items():
        columns = MetricColumns.on(stream, leading_metric(stream))
        headings = [Heading(stream, metric) for metric in columns.names]
        cells = {(row, heading): Cell(heading.metric, members) for row, members in rows.items() for heading in headings}
        tables.append(Table(stream, f"{means_over(rows)}. Budget: {budget}", cells))
        plot = task_plot(f"{stream}, {budget}", "Accuracy after each task", columns, rows, highlight)
        plots += [plot] if plot else []
    streams = list(dict.fromkeys(stream for stream, _ in groups))
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    on = streams[0] if len(streams) == 1 else f"{len(streams)} streams"
    return Report(f"{count} on {on}", command, tuple(tables), tuple(plots), notes=tuple(notes))


def _planned_tasks(record: RunRecord) -> int | None:
    """The number of tasks that a run will have; None if it is finished, or if that is not known without its data."""
    if record.result is None or record.result.complete:
        return None
    if record.settings.tasks is not None:
        return record.settings.tasks
    try:
        return known_tasks(record.settings.stream)
    except UserError:
        return None


def _rows(records: Sequence[RunRecord]) -> dict[str, tuple[RunRecord, ...]]:
    """Runs by method and the settings in which they differ from others of it; runs of a row differ in their seeds."""
    labels: dict[str, list[RunRecord]] = {}
    for record in records:
        labels.setdefault(record.settings.label, []).append(record)
    rows: dict[int, str] = {}
    for label, members in labels.items():
        explicit = {name for record in members for name in dict(dotted(record.settings.settings))}
        settings = [_row_settings(record, explicit) for record in members]
        for record, values in zip(members, settings, strict=True):
            differing = [name for name in values if any(other.get(name) != values[name] for other in settings)]
            rows[id(record)] = ", ".join([label, *(f"{name}={values[name]}" for name in differing), *_progress(record)])
    grouped: dict[str, list[RunRecord]] = {}
    for record in records:
        grouped.setdefault(rows[id(record)], []).append(record)
    return {
        name: tuple(sorted(members, key=lambda record: (record.settings.order_seed, record.settings.seed)))
        for name, members in grouped.items()
    }


def _row_settings(record: RunRecord, explicit: Collection[str]) -> dict[str, Any]:
    """The settings of a run, and those of its recipe that no run of the method sets explicitly."""
    assert record.result is not None
    identity = canonical_settings(record.settings).identity()
    changed = identity.pop("settings")
    values = {name: value for name, value in identity.items() if name not in _SHARED and value is not None}
    trained = dict(dotted(with_new_settings(record.result.settings.get("method", {}), record.settings.method)))
    recipe = {name: value for name, value in trained.items() if name not in explicit}
    return {**values, **recipe, **dict(dotted(changed))}


def _progress(record: RunRecord) -> list[str]:
    """The mean over fewer tasks is another value, so unfinished runs have rows of their own."""
    assert record.result is not None
    if record.result.complete:
        return []
    done = len(record.result.tasks)
    return [f"{done} task{'' if done == 1 else 's'} so far"]
