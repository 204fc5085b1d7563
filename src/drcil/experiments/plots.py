"""Plots as PNG and PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from rich.table import Table

from ..data.image_set import Int64
from ..files import write_bytes
from ..runs.result import RunResult
from ..streams.stream import TaskImages
from .summary import MetricColumns
from .tables import Plot, Report
from .writers import terminal_table


def band(values: Sequence[float | None], errors: Sequence[float | None] | None) -> list[float]:
    """The ends of the error band of a line: values that an axis has to show.

    >>> band([90.0, None, 80.0], [1.0, None, 2.0]), band([90.0], None)
    ([89.0, 91.0, 78.0, 82.0], [90.0, 90.0])
    """
    pairs = zip(values, errors or [None] * len(values), strict=True)
    return [end for value, error in pairs if value is not None for end in (value - (error or 0), value + (error or 0))]


def limits(lowest: float, highest: float, percent: bool = True) -> tuple[float, float]:
    """The range of an axis on which the lowest and the highest value can be distinguished.

    >>> limits(21.0, 88.0), limits(72.31, 74.02), limits(100.0, 100.0), limits(30.0, 500.0, percent=False)
    ((20, 90), (72, 75), (99, 100), (0, 525.0))
    """
    if not percent:
        return (0, 1.05 * highest)
    span = highest - lowest
    step = 10 if span > 10 else 5 if span > 5 else 1
    top = min(100, step * ceil((highest + step / 100) / step))
    return (max(0, min(step * floor(lowest / step), top - step)), top)


# Okabe and Ito's colours; yellow is left out, it is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def line_styles(highlighted: Sequence[bool]) -> list[int]:
    """A number for every line, which means a colour and a marker; 0 for the highlighted line.

    >>> line_styles([False, True, False])
    [1, 0, 2]
    """
    order = sorted(range(len(highlighted)), key=lambda at: not highlighted[at])
    return [order.index(at) for at in range(len(highlighted))]


PLOTS = "plots"
"""The directory of the plots of a report."""
_LONG = 100
"""Characters of a plot's name in the name of a file."""
_MARKERS = "osD^vPX"
_LEGEND_ROWS = 24
_TICKS = 11
"""Steps from one end of an axis to the other, if every point is to have its value below it."""
INK, _GRID = "#333333", "#e3e3e3"


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: list[float] | None = None
    """Standard error of each point of a mean."""
    is_primary: bool = True
    is_highlighted: bool = False


def readout_lines(result: RunResult) -> dict[str, Line]:
    """The curve of every readout of a run, without the tasks in which it has no value."""
    columns = MetricColumns.of(result)
    lines = {}
    for readout in result.readouts:
        points = zip(accumulate(result.tasks), result.figure(columns.curve, readout), strict=False)
        measured = [(float(classes), accuracy) for classes, accuracy in points if accuracy is not None]
        name = f"{result.method}, {readout}" if len(result.readouts) > 1 else result.method
        average = result.figure(columns.metric, readout)
        label = f"{name}  ({columns.title} {'–' if average is None else f'{average:.2f} %'})"
        is_primary = readout == result.readout
        lines[readout] = Line(
            label, [classes for classes, _ in measured], [y for _, y in measured], is_primary=is_primary
        )
    return lines


def plot_curve(result: RunResult, path: Path) -> None:
    """Accuracy after each task against the classes seen: a line for every readout."""
    lines = list(readout_lines(result).values())
    figure, axes = _axes((9.0, 4.4), result.stream)
    lowest = min((value for line in lines for value in line.y), default=0.0)
    axes.set_ylim(max(0.0, 10 * ((lowest - 5) // 10)), 100)
    _format_axes(axes, lines, "classes seen", MetricColumns.of(result).axis)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    _draw(axes, lines)
    write_figure(figure, path)


def plot_lines(plot: Plot, path: Path, root: Path | None = None) -> None:
    """A plot of a report, as PNG and, for papers, as PDF beside it."""
    lines = []
    for name, points in plot.lines.items():
        errors = [mean.error or 0.0 for _, mean in points] if any(mean.error for _, mean in points) else None
        xs, ys = [x for x, _ in points], [mean.mean for _, mean in points]
        lines.append(Line(name, xs, ys, errors, is_highlighted=name == plot.highlight))
    figure, axes = _axes((9.0, 4.6), plot.name)
    values = [value for line in lines for value in band(line.y, line.error)]
    axes.set_ylim(*limits(min(values), max(values), plot.percent))
    _format_axes(axes, lines, plot.x_label, plot.y_label.removesuffix(" (%)"))
    if plot.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    _draw(axes, lines)
    write_figure(figure, path, root)
    write_figure(figure, path.with_suffix(".pdf"), root)


def write_plots(directory: Path, report: Report) -> dict[str, str]:
    """Write all plots of a report below a directory; the file of each, by its name."""
    files = plot_files([plot.name for plot in report.plots])
    for plot in report.plots:
        plot_lines(plot, directory / files[plot.name], root=directory)
    return files


def plot_files(names: Sequence[str]) -> dict[str, str]:
    """A file for each plot, by its name.

    >>> plot_files(["F7, alpha", "F7 alpha"])
    {'F7, alpha': 'plots/F7-alpha.png', 'F7 alpha': 'plots/F7-alpha-2.png'}
    """
    files: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.")[:_LONG] or "plot"
        numbered = (f"{PLOTS}/{stem}{'' if number == 1 else f'-{number}'}.png" for number in count(1))
        files[name] = next(file for file in numbered if file not in files.values())
    return files


def _axes(size: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", weight="bold", pad=12)
    return figure, axes


def _draw(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw lines, and a legend beside the axes with the line that ends highest first."""
    any_highlighted = any(line.is_highlighted for line in lines)
    handles = []
    for line, style in zip(lines, line_styles([line.is_highlighted for line in lines]), strict=True):
        colour = COLOURS[style % len(COLOURS)]
        handles += axes.plot(
            line.x,
            line.y,
            label=line.label,
            color=colour,
            marker=_MARKERS[style // len(COLOURS) % len(_MARKERS)],
            markersize=6 if line.is_highlighted else 4 if any_highlighted else 5,
            linewidth=2.8 if line.is_highlighted else 1.3 if any_highlighted or not line.is_primary else 2.0,
            linestyle="-" if line.is_primary else (0, (4, 2)),
            clip_on=False,
            zorder=3.5 if line.is_highlighted else 3 if line.is_primary else 2.5,
        )
        if line.error:
            pairs = list(zip(line.y, line.error, strict=True))
            low, high = [mean - error for mean, error in pairs], [mean + error for mean, error in pairs]
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    order = sorted(range(len(lines)), key=lambda at: -lines[at].y[-1])
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(
        handles=[handles[at] for at in order],
        loc="outside right upper",
        ncols=-(-len(lines) // _LEGEND_ROWS),
        frameon=False,
        fontsize=9,
    )


def write_figure(figure: Figure, path: Path, root: Path | None = None) -> None:
    image = io.BytesIO()
    # The same figure is the same file, whenever it is drawn.
    undated = {"CreationDate": None} if path.suffix == ".pdf" else {}
    figure.savefig(image, format=path.suffix.removeprefix("."), metadata=undated)
    write_bytes(path, image.getvalue(), root)


def _format_axes(axes: Axes, lines: Sequence[Line], x_label: str, y_label: str) -> None:
    """Set labels and ticks, and remove the frame."""
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    bottom, top = axes.get_ylim()
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10], integer=top - bottom > 5))
    ticks = sorted({x for line in lines for x in line.x})
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


_COLUMNS = 4


def imbalance_table(tasks: Sequence[TaskImages]) -> Table:
    """A row for each task."""
    header = ("task", "classes", "new images", "per class", "memory", "per class", "ratio")
    rows = []
    for task in tasks:
        classes, new, memory = len(task.memory) + len(task.new), task.new, task.memory
        row = (task.number, classes, new.sum(), _span(new), memory.sum(), _span(memory), f"{task.ratio:.1f}")
        rows.append([str(value) for value in row])
    return terminal_table(header, rows)


def imbalance_json(tasks: Sequence[TaskImages]) -> list[dict[str, Any]]:
    """The images of every class, task by task."""
    return [
        {"task": task.number, "memory": task.memory.tolist(), "new": task.new.tolist(), "ratio": round(task.ratio, 4)}
        for task in tasks
    ]


def plot_imbalance(tasks: Sequence[TaskImages], title: str, path: Path) -> None:
    """A panel per task: images of each class in the stream's order, on a scale of powers of ten."""
    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.3 * rows + 0.5), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for panel, task in zip(panels, tasks, strict=False):
        old, classes = len(task.memory), len(task.memory) + len(task.new)
        panel.bar(range(old), task.memory, width=1.0, color=COLOURS[0], label="memory")
        panel.bar(range(old, classes), task.new, width=1.0, color=COLOURS[1], label="new")
        panel.set_title(f"task {task.number}, ratio {task.ratio:.1f}", fontsize=9, color=INK)
        panel.tick_params(labelsize=8, colors=INK)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(tasks) :]:
        panel.set_visible(False)
    # Of all panels, which share it; once one is limited, the others no longer follow what is drawn in them.
    largest = max(int(counts.max()) for task in tasks for counts in (task.memory, task.new) if len(counts))
    panels[0].set_yscale("log")
    panels[0].set_ylim(0.7, 1.3 * largest)
    figure.supxlabel("class, in order of appearance", fontsize=9, color=INK)
    figure.supylabel("training images", fontsize=9, color=INK)
    panels[0].legend(frameon=False, fontsize=8)
    write_figure(figure, path)


def _span(counts: Int64) -> str:
    """The fewest and the most images of a class."""
    if not len(counts):
        return "–"
    return str(counts.max()) if counts.min() == counts.max() else f"{counts.min()}–{counts.max()}"
