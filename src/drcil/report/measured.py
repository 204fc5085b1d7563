"""Measured beside published: what a suite of runs says about the cells of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .comparison import Figure, Outcome, figure
from .figures import figure_of


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

    @property
    def measured(self) -> Figure | None:
        """The mean over the runs that are finished, with its standard error; None where there is none."""
        values = [figure_of(one.result, self.metric) for one in self.outcomes if one.result is not None]
        known = [float(value) for value in values if value is not None]
        return figure(known) if known else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, in points."""
        measured = self.measured
        return None if measured is None or self.published is None else measured.mean - self.published


@dataclass(frozen=True)
class MeasuredTable:
    """A table, published or a user's own, with what was measured."""

    name: str
    caption: str
    rows: tuple[str, ...]
    columns: tuple[Heading, ...]
    cells: Mapping[tuple[str, Heading], MeasuredCell]
    """By row and column; a cell that the table does not have is absent."""


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


@dataclass(frozen=True)
class SuiteReport:
    """All that the report of a suite shows."""

    title: str
    command: str
    """That makes or continues it."""
    tables: tuple[MeasuredTable, ...] = ()
    curves: tuple[Curves, ...] = ()
    failures: tuple[str, ...] = ()
    """A sentence for each run that failed, with its log."""
