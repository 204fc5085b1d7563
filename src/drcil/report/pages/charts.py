"""The charts of a page as plain data; ``files/charts.js`` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..colours import line_colours
from ..figures import figure_of, shown_of
from ..measured import Curves
from ..plots import curves
from ..spans import limits, reached

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Series:
    """A line."""

    name: str
    across: tuple[float, ...]
    along: tuple[float | None, ...]
    """None: a gap."""
    error: tuple[float | None, ...] | None = None
    """Standard errors, drawn as a band."""
    leads: bool = True
    """Lines that do not are drawn thinner and broken."""
    marked: bool = False
    """The one in question among others."""


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis, each with its name at its end."""

    across: str
    along: str
    series: tuple[Series, ...]
    percent: bool = False
    places: tuple[str, ...] = ()
    """What the points at 1, 2, … are, in words."""

    def data(self) -> dict[str, Any]:
        known = [value for one in self.series for value in reached(one.along, one.error)]
        return {
            "kind": "lines",
            **asdict(self),
            "colours": line_colours([one.marked for one in self.series]),
            "limits": limits(min(known), max(known)) if self.percent and known else None,
        }


@dataclass(frozen=True)
class HeatMap:
    """Percentages by task and task, the darker the more."""

    down: str
    """What the rows are."""
    across: str
    values: Rows
    """A row may be shorter than the others."""
    hue: str = "blue"

    def data(self) -> dict[str, Any]:
        return {"kind": "heat", **asdict(self)}


def curve_chart(result: dict[str, Any]) -> LineChart:
    """What is measured after each task, a line for each readout."""
    lines = curves([result])
    series = tuple(
        Series(readout, tuple(line.seen), tuple(line.accuracy), leads=line.leads)
        for readout, line in zip(result["readouts"], lines, strict=True)
    )
    return LineChart("classes seen", shown_of(result).axis, series, percent=True)


def accuracy_map(result: dict[str, Any]) -> HeatMap:
    return HeatMap("after task", "on task", _rounded(figure_of(result, "matrix")))


def forgetting_map(result: dict[str, Any]) -> HeatMap:
    """After each task: how far accuracy on each task so far is below the best it ever had."""
    matrix = figure_of(result, "matrix")
    fallen = [
        [max(matrix[then][task] for then in range(task, now + 1)) - row[task] for task in range(now + 1)]
        for now, row in enumerate(matrix)
    ]
    return HeatMap("after task", "on task", _rounded(fallen), hue="orange")


def confusion_map(result: dict[str, Any]) -> HeatMap | None:
    """None: the result is of before it was measured."""
    shares = result["readouts"][result["readout"]].get("confusion")
    return None if shares is None else HeatMap("images of task", "answered with a class of task", _rounded(shares))


def plotted(curves: Curves) -> LineChart:
    """The curves of a suite."""
    series = tuple(
        Series(
            name,
            tuple(across for across, _ in points),
            tuple(round(own.mean, 4) for _, own in points),
            tuple(own.error for _, own in points) if any(own.error is not None for _, own in points) else None,
            marked=name == curves.highlight,
        )
        for name, points in curves.lines.items()
    )
    return LineChart(curves.across, curves.along, series, percent=curves.percent)


def _rounded(rows: Sequence[Sequence[float]]) -> Rows:
    return tuple(tuple(round(value, 2) for value in row) for row in rows)
