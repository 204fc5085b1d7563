"""The training images of each task, old classes against new ones: as a table, as JSON and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from ..data.sources.imageset import Int64
from ..streams.imbalance import TaskImages
from .colours import COLOURS
from .plots import INK, write_figure

_COLUMNS = 4


def imbalance_table(tasks: Sequence[TaskImages]) -> Table:
    """A row per task."""
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in ("task", "classes", "new images", "per class", "memory", "per class", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in tasks:
        seen, new, memory = len(task.memory) + len(task.new), task.new, task.memory
        row = (task.number, seen, new.sum(), _span(new), memory.sum(), _span(memory), f"{task.ratio:.1f}")
        table.add_row(*map(str, row))
    return table


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
        old, seen = len(task.memory), len(task.memory) + len(task.new)
        panel.bar(range(old), task.memory, width=1.0, color=COLOURS[0], label="memory")
        panel.bar(range(old, seen), task.new, width=1.0, color=COLOURS[1], label="new")
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
