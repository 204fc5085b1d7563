"""Plots of results, as PNG. Figures are made by themselves: no window, no global state.

Lines have their names at their ends, so that no legend is needed however many there are.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from ..disk import write_bytes
from .colours import COLOURS, line_colours
from .comparison import Summary
from .figures import PLAIN, Shown, shown_of
from .measured import Curves, SuiteReport
from .spans import limits, reached

PLOTS = "plots"
"""The directory of the plots of a report."""
_LONG = 100
"""Characters of a plot's name in the name of a file."""
_MARKERS = "osD^vPX"
_POINTS, _NAME = 72, 9
"""Of an inch; and the size of the names."""
_EDGES = 1.15
"""Inches of a figure's height that are not those of its axes."""
_LEADER = {"arrowstyle": "-", "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}
"""The thread from a line's end to its name."""
_TICKS = 11
"""Steps from one end of an axis to the other, if every point is to have its value below it."""
INK, _GRID = "#333333", "#e3e3e3"


@dataclass(frozen=True)
class Line:
    """One readout of one run, or the mean of several runs."""

    label: str
    seen: Sequence[float]
    accuracy: Sequence[float]
    average: float | None
    """The leading metric, of which a result may have none."""
    leads: bool
    error: list[float] | None = None
    """Standard error of each point of a mean."""
    marked: bool = False
    """The one in question among others."""


def plot_curve(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy after each task against the classes seen: a line for every readout of every run."""
    lines, shown = curves(results), shown_of(results[0])
    figure, axes = _axes((7.2, 4.4), ", ".join(dict.fromkeys(result["stream"] for result in results)))
    _dress(axes, lines, shown)
    _draw(axes, [_with_average(line, lines, shown) for line in lines])
    write_figure(figure, path)


def plot_comparison(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """The mean curve of every method that finished a run, with a band of one standard error to either side.

    The method that was named first stands out.
    """
    lines, shown = mean_curves(summaries), summaries[0].shown
    figure, axes = _axes((9.0, _height(len(lines))), title)
    _dress(axes, lines, shown)
    _draw(axes, [_with_average(line, lines, shown) for line in lines])
    write_figure(figure, path)


def plot_lines(own: Curves, path: Path) -> None:
    """A plot of a suite, as PNG and, for papers, as PDF beside it."""
    lines = [
        Line(
            name,
            [across for across, _ in points],
            [point.mean for _, point in points],
            None,
            True,
            [point.error or 0.0 for _, point in points] if any(point.error for _, point in points) else None,
            name == own.highlight,
        )
        for name, points in own.lines.items()
    ]
    lines.sort(key=lambda line: -line.accuracy[-1])
    figure, axes = _axes((7.2, _height(len(lines))), own.name)
    values = [value for line in lines for value in reached(line.accuracy, line.error)]
    axes.set_ylim(*limits(min(values), max(values), own.percent))
    _clear(axes, lines, own.across, own.along.removesuffix(" (%)"))
    if own.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    _draw(axes, lines)
    write_figure(figure, path)
    write_figure(figure, path.with_suffix(".pdf"))


def write_plots(place: Path, report: SuiteReport) -> dict[str, str]:
    """All plots of a report in a directory below ``place``; where each is from there, by its name."""
    files = plot_files([own.name for own in report.curves])
    for own in report.curves:
        plot_lines(own, place / files[own.name])
    return files


def plot_files(names: Sequence[str]) -> dict[str, str]:
    """A file for each plot, by its name.

    >>> plot_files(["F7, alpha", "F7 alpha"])
    {'F7, alpha': 'plots/F7-alpha.png', 'F7 alpha': 'plots/F7-alpha-2.png'}
    """
    files: dict[str, str] = {}
    for name in names:
        words = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.")[:_LONG] or "plot"
        own = (f"{PLOTS}/{words}{'' if number == 1 else f'-{number}'}.png" for number in count(1))
        files[name] = next(file for file in own if file not in files.values())
    return files


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
            first = summary is summaries[0] and len(summaries) > 1
            lines.append(Line(summary.method, seen, accuracy, average, True, errors or None, first))
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


def _with_average(line: Line, lines: Sequence[Line], shown: Shown) -> Line:
    """The line, its leading metric told with its name.

    Where lines end at different tasks it does not compare, and says over how many it is.
    """
    over = "" if len({len(each.accuracy) for each in lines}) == 1 else f" of {len(line.accuracy)} tasks"
    average = "–" if line.average is None else f"{line.average:.2f} %"
    return replace(line, label=f"{line.label}  ({shown.title}{over} {average})")


def _height(lines: int) -> float:
    """Inches that a figure of so many lines needs for their names."""
    return max(4.6, _EDGES + 1.5 * _NAME / _POINTS * lines)


def _axes(size: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", weight="bold", pad=12)
    return figure, axes


def _draw(axes: Axes, lines: Sequence[Line]) -> None:
    """Lines of different colours, each with its name at its end; after seven, with another marker too."""
    marked = any(line.marked for line in lines)
    for index, (line, colour) in enumerate(zip(lines, _colours(lines), strict=True)):
        axes.plot(
            line.seen,
            line.accuracy,
            color=colour,
            marker=_MARKERS[index // len(COLOURS) % len(_MARKERS)],
            markersize=6 if line.marked else 4 if marked else 5,
            linewidth=2.8 if line.marked else 1.3 if marked or not line.leads else 2.0,
            linestyle="-" if line.leads else (0, (4, 2)),
            clip_on=False,
            zorder=3.5 if line.marked else 3 if line.leads else 2.5,
        )
        if line.error:
            band = list(zip(line.accuracy, line.error, strict=True))
            low, high = [mean - error for mean, error in band], [mean + error for mean, error in band]
            axes.fill_between(line.seen, low, high, color=colour, alpha=0.15, linewidth=0)
    _name_ends(axes, lines)


def _colours(lines: Sequence[Line]) -> list[str]:
    return line_colours([line.marked for line in lines])


def _name_ends(axes: Axes, lines: Sequence[Line]) -> None:
    """Names to the right of the axes, as near to the ends of their lines as they can be without touching."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    bottom, top = axes.get_ylim()
    unit = (top - bottom) / ((figure.get_figheight() - _EDGES) * _POINTS)
    places = spread([line.accuracy[-1] for line in lines], 1.35 * _NAME * unit, bottom, top)
    for line, place, colour in zip(lines, places, _colours(lines), strict=True):
        axes.annotate(
            line.label,
            (line.seen[-1], line.accuracy[-1]),
            (1.03, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=colour,
            fontsize=_NAME,
            weight="bold" if line.marked else "normal",
            annotation_clip=False,
            arrowprops={"color": colour, **_LEADER},
        )


def spread(wanted: Sequence[float], least: float, bottom: float, top: float) -> list[float]:
    """Heights at least so far from each other, as near as can be to where they belong: names in a crowd move apart
    about its middle.

    >>> spread([5.0, 5.0, 9.0], 2.0, 0.0, 10.0)
    [6.0, 4.0, 9.0]
    """
    order = sorted(range(len(wanted)), key=lambda at: (wanted[at], -at))
    # Least squares under an order: neighbours that would touch share the mean of what they want.
    crowds: list[list[float]] = []
    for number, at in enumerate(order):
        crowds.append([wanted[at] - number * least])
        while len(crowds) > 1 and fmean(crowds[-2]) > fmean(crowds[-1]):
            last = crowds.pop()
            crowds[-1] += last
    means = [fmean(crowd) for crowd in crowds for _ in crowd]
    highest = top - (len(order) - 1) * least
    placed = [0.0] * len(order)
    for number, at in enumerate(order):
        placed[at] = max(bottom, min(means[number], highest)) + number * least
    return placed


def write_figure(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    # The same figure is the same file, whenever it is drawn.
    undated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    figure.savefig(image, format=path.suffix.removeprefix("."), metadata=undated)
    write_bytes(path, image.getvalue())


def _dress(axes: Axes, lines: Sequence[Line], shown: Shown = PLAIN) -> None:
    """The axes of accuracy against the classes seen."""
    lowest = min((value for line in lines for value in reached(line.accuracy, line.error)), default=0.0)
    axes.set_ylim(max(0.0, 10 * ((lowest - 5) // 10)), 100)
    _clear(axes, lines, "classes seen", shown.axis)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))


def _clear(axes: Axes, lines: Sequence[Line], across: str, along: str) -> None:
    """Labels, marks where points are, and no ink that says nothing."""
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(along, color=INK)
    bottom, top = axes.get_ylim()
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=top - bottom > 5))
    ticks = sorted({seen for line in lines for seen in line.seen})
    # Narrower ones would be written over each other.
    least = 0.999 * (ticks[-1] - ticks[0]) / _TICKS if ticks else 0.0
    if all(after - before >= least for before, after in pairwise(ticks)):
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#bbbbbb")
