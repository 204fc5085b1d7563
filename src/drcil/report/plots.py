"""Plots of results, as PNG. Figures are made by themselves: no window, no global state."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..disk import write_bytes
from .colours import COLOURS
from .comparison import Summary
from .figures import PLAIN, Shown, shown_of

_MARKERS = "osD^vPX"
INK, _GRID = "#333333", "#e3e3e3"


@dataclass(frozen=True)
class Line:
    """One readout of one run, or the mean of several runs."""

    label: str
    seen: list[int]
    accuracy: list[float]
    average: float | None
    """The leading metric, of which a result may have none."""
    leads: bool
    error: list[float] | None = None
    """Standard error of each point of a mean."""


def plot_curve(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy after each task against the classes seen: a line for every readout of every run."""
    lines, shown = curves(results), shown_of(results[0])
    figure, axes = _axes((7.2, 4.4), ", ".join(dict.fromkeys(result["stream"] for result in results)))
    for index, line in enumerate(lines):
        _draw(axes, line, f"{line.label}  ({_average(line, lines, shown)})", index)
    _dress(axes, lines, shown)
    # Curves fall from the upper left, so the lower left is where there is room.
    axes.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none", labelcolor=INK, fontsize=9)
    write_figure(figure, path)


def plot_comparison(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """The mean curve of every method that finished a run, with a band of one standard error to either side."""
    lines, shown = mean_curves(summaries), summaries[0].shown
    figure, axes = _axes((9.0, max(4.8, 0.9 + 0.21 * len(lines))), title)
    for index, line in enumerate(lines):
        _draw(axes, line, f"{line.label}  ({_average(line, lines, shown)})", index)
    _dress(axes, lines, shown)
    # Beside the curves, where there is room for many names.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK, fontsize=9)
    write_figure(figure, path)


def mean_curves(summaries: Sequence[Summary]) -> list[Line]:
    """A line for every method that has a curve. Which ends highest comes first, so that neighbours differ in colour."""
    lines = []
    for summary in summaries:
        leading = summary.figures[summary.shown.metric]
        average = None if leading is None else leading.mean
        points = [(seen, own) for seen, own in zip(summary.seen, summary.curve, strict=True) if own is not None]
        if points:
            errors = [own.error for _, own in points if own.error is not None]
            seen, accuracy = [seen for seen, _ in points], [own.mean for _, own in points]
            lines.append(Line(summary.method, seen, accuracy, average, True, errors or None))
    return sorted(lines, key=lambda line: -line.accuracy[-1])


def curves(results: Sequence[dict[str, Any]]) -> list[Line]:
    """The lines of a plot. Labels say only what tells the lines apart: readouts, seeds."""
    runs = Counter(result["method"] for result in results)
    lines = []
    for result in results:
        name = result["method"] + (f", seed {result['seed']}" if runs[result["method"]] > 1 else "")
        for readout, figures in result["readouts"].items():
            label = f"{name}, {readout}" if len(result["readouts"]) > 1 else name
            shown = shown_of(result)
            points = zip(accumulate(result["tasks"]), figures[shown.curve], strict=False)
            known = [(seen, accuracy) for seen, accuracy in points if accuracy is not None]
            seen, accuracy = [seen for seen, _ in known], [accuracy for _, accuracy in known]
            lines.append(Line(label, seen, accuracy, figures[shown.metric], readout == result["readout"]))
    return lines


def _average(line: Line, lines: Sequence[Line], shown: Shown) -> str:
    """A line's leading metric; where lines end at different tasks it does not compare, and says over how many it is."""
    over = "" if len({len(each.accuracy) for each in lines}) == 1 else f" of {len(line.accuracy)} tasks"
    return f"{shown.title}{over} " + ("–" if line.average is None else f"{line.average:.2f} %")


def _axes(size: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", weight="bold", pad=12)
    return figure, axes


def _draw(axes: Axes, line: Line, label: str, index: int) -> None:
    """One line; colours come round after seven lines, with another marker."""
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(
        line.seen,
        line.accuracy,
        label=label,
        color=colour,
        marker=_MARKERS[index // len(COLOURS) % len(_MARKERS)],
        markersize=5,
        linewidth=2.0 if line.leads else 1.4,
        linestyle="-" if line.leads else (0, (4, 2)),
        clip_on=False,
        zorder=3 if line.leads else 2.5,
    )
    if line.error:
        band = list(zip(line.accuracy, line.error, strict=True))
        low, high = [mean - error for mean, error in band], [mean + error for mean, error in band]
        axes.fill_between(line.seen, low, high, color=colour, alpha=0.15, linewidth=0)


def write_figure(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_bytes(path, image.getvalue())


def _dress(axes: Axes, lines: Sequence[Line], shown: Shown = PLAIN) -> None:
    """Scale, labels, and no ink that says nothing."""
    lowest = min((value for line in lines for value in line.accuracy), default=0.0)
    bottom = max(0.0, 10 * ((lowest - 5) // 10))
    axes.set_ylim(bottom, 100)
    axes.set_xlabel("classes seen", color=INK)
    axes.set_ylabel(shown.axis, color=INK)
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    ticks = sorted({seen for line in lines for seen in line.seen})
    if len(ticks) <= 12:
        axes.set_xticks(ticks)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#bbbbbb")
