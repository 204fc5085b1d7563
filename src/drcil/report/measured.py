"""Measured beside published: what a suite of runs says about the cells of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .noise import noise_of_means, noise_of_one
from .outcomes import Figure, Outcome, figure, independent

Verdict = Literal["within noise", "outside noise", "one run", "one class order"]
"""Of a difference; what is measured once, or in one of several class orders, has no error to tell by."""


@dataclass(frozen=True)
class Heading:
    """A column of a table."""

    group: str
    """What it shares with its neighbours: the stream, memory and augmentation, in words for people."""
    metric: str
    """Whose values it shows: ``avg``, ``last``, ``task_avg`` …"""


@dataclass(frozen=True)
class MeasuredCell:
    """A figure: as it was published, if it was, and as the runs that belong to it measured it."""

    metric: str
    outcomes: tuple[Outcome, ...]
    """The runs whose mean it is: class orders, seeds. None of them may be finished yet."""
    published: float | None = None
    published_error: float | None = None
    """The standard error that was printed beside it."""
    note: str = ""
    """Why nothing was measured, where that is known before any run: the data is not at hand, it was not asked for."""
    published_runs: int = 1
    """Of how many class orders it was published as the mean; where it has an error, of several."""
    comparable: bool = True
    """Whether its runs have the budget of the published ones. A smaller one is not expected to reach the value."""

    @property
    def values(self) -> list[float]:
        """What its mean and error are of: a value of each class order where it has several, else of each seed."""
        return independent(self.outcomes, (one.metric(self.metric) for one in self.outcomes))

    @property
    def measured(self) -> Figure | None:
        """The mean over the runs that are finished, with its standard error; None where there is none."""
        known = self.values
        return figure(known) if known else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, in points."""
        measured = self.measured
        return None if measured is None or self.published is None else measured.mean - self.published

    @property
    def noise(self) -> float | None:
        """How far the difference may be from zero by chance, in 19 of 20 cases; None where one run gives no estimate,
        or where there is more than chance between the two.

        A value that was published without an error is taken to be of a single run that varies as ours do.
        """
        measured, runs = self.measured, len(self.values)
        if measured is None or measured.error is None or not self.comparable:
            return None
        if self.published_error is None:
            return noise_of_one(measured.error, runs)
        return noise_of_means(measured.error, runs, self.published_error, self.published_runs)

    @property
    def verdict(self) -> Verdict | None:
        """Whether the difference may be chance; None where there is none, or where it is one of budgets."""
        difference, noise = self.difference, self.noise
        if difference is None or not self.comparable:
            return None
        if noise is None:
            return "one run" if self.finished == 1 else "one class order"
        return "within noise" if abs(difference) <= noise else "outside noise"

    @property
    def finished(self) -> int:
        """How many runs have a result."""
        return sum(one.result is not None for one in self.outcomes)

    @property
    def lacking(self) -> str:
        """Why there is no figure, in a word or two; nothing where there is one."""
        if self.measured is not None:
            return ""
        if any(one.result is not None for one in self.outcomes):
            return "–"
        return self.note or ("failed" if any(one.failure is not None for one in self.outcomes) else "not run")


@dataclass(frozen=True)
class MeasuredTable:
    """A table, published or a user's own, with what was measured."""

    name: str
    caption: str
    rows: tuple[str, ...]
    columns: tuple[Heading, ...]
    cells: Mapping[tuple[str, Heading], MeasuredCell]
    """By row and column; a cell that the table does not have is absent."""

    def parts(self) -> Iterator[tuple[str, MeasuredTable]]:
        """The table of each group of columns, with the rows that have something there."""
        for group in dict.fromkeys(column.group for column in self.columns):
            cells = {at: cell for at, cell in self.cells.items() if at[1].group == group}
            own = {row for row, _ in cells}
            yield (
                group,
                MeasuredTable(
                    self.name,
                    self.caption,
                    tuple(row for row in self.rows if row in own),
                    tuple(column for column in self.columns if column.group == group),
                    cells,
                ),
            )

    @property
    def beside(self) -> bool:
        """Whether there is anything published to stand beside."""
        return any(cell.published is not None for cell in self.cells.values())

    @property
    def judged(self) -> bool:
        """Whether of any difference it is said if it may be chance."""
        return any(cell.verdict is not None for cell in self.cells.values())

    def gains(self) -> Iterator[Gain]:
        """What a row has more than the one that it is made from, by its name: ``MAF+DRC`` from ``MAF``.

        Even where budgets differ, these can be looked at side by side.
        """
        for row in self.rows:
            base = max((other for other in self.rows if other != row and row.startswith(other)), key=len, default=None)
            points = {}
            for column in self.columns:
                pair = [self.cells.get((name, column)) for name in (row, base)] if base is not None else []
                measured = [cell.measured.mean for cell in pair if cell is not None and cell.measured is not None]
                published = [cell.published for cell in pair if cell is not None and cell.published is not None]
                if len(measured) == len(published) == 2:
                    points[column] = (measured[0] - measured[1], published[0] - published[1])
            if base is not None and points:
                yield Gain(row, base, points)


@dataclass(frozen=True)
class Gain:
    """A row of a table minus another, as it was measured and as it was published."""

    row: str
    base: str
    points: Mapping[Heading, tuple[float, float]]

    @property
    def name(self) -> str:
        return f"{self.row} − {self.base}"


@dataclass(frozen=True)
class Curves:
    """A plot of several lines: accuracy after each task, or a figure against a setting that was swept."""

    name: str
    caption: str
    across: str
    """What is on the horizontal axis."""
    along: str
    """What is on the vertical axis."""
    lines: Mapping[str, tuple[tuple[float, Figure], ...]]
    """By name: points from left to right."""
    highlight: str = ""
    """The line in question."""
    percent: bool = True
    """Whether values are percentages."""
    outcomes: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """The runs behind each line."""


@dataclass(frozen=True)
class SuiteReport:
    """All that the report of a suite shows."""

    title: str
    command: str
    """That makes or continues it; nothing where there is no single one."""
    tables: tuple[MeasuredTable, ...] = ()
    curves: tuple[Curves, ...] = ()
    failures: tuple[str, ...] = ()
    """A sentence for each run that failed, with its log."""
    notes: tuple[str, ...] = ()
    """What a reader should know of it, a sentence each."""

    def outcomes(self) -> dict[tuple[str, str], Outcome]:
        """All runs that it shows, by directory and readout."""
        cells = (cell.outcomes for table in self.tables for cell in table.cells.values())
        lines = (runs for curves in self.curves for runs in curves.outcomes.values())
        every = (one for runs in (*cells, *lines) for one in runs)
        return {outcome_key(one): one for one in every}


def outcome_key(outcome: Outcome) -> tuple[str, str]:
    """What tells an outcome from others: its run, and the readout whose figures it has."""
    return outcome.directory, "" if outcome.result is None else outcome.result["readout"]


def figure_words(own: Figure, decimals: int = 2) -> str:
    """A mean, with its error where there is one.

    >>> figure_words(Figure(73.971, 0.128)), figure_words(Figure(73.971, None))
    ('73.97 ±0.13', '73.97')
    """
    error = "" if own.error is None else f" ±{own.error:.{decimals}f}"
    return f"{own.mean:.{decimals}f}{error}"
