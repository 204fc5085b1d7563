"""Published tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from .tables import Column, PaperTable

_METRICS = {"avg": "Avg", "last": "Last"}
_DATASETS = {"cifar100": "CIFAR-100", "imagenet100": "ImageNet-100", "imagenet1000": "ImageNet-1000"}


def published_tables(table: PaperTable) -> Iterator[tuple[str, Table]]:
    """A heading and a table for each dataset and memory, so that columns need no more than cut and metric."""
    for dataset, memory in dict.fromkeys((column.dataset, column.memory) for column in table.columns):
        columns = [column for column in table.columns if (column.dataset, column.memory) == (dataset, memory)]
        about = f"{_DATASETS[dataset]}, memory {memory}, {columns[0].backbone}, augmentation {columns[0].augment}"
        shown = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
        shown.add_column("method", no_wrap=True)
        for column in columns:
            shown.add_column(_heading(column), justify="right")
        for row in table.rows:
            shown.add_row(row, *(_printed(table, row, column) for column in columns))
        yield about, shown


def _heading(column: Column) -> str:
    return f"{column.protocol}-{column.steps}\n{_METRICS[column.metric]}"


def _printed(table: PaperTable, row: str, column: Column) -> str:
    cell = table.cells[row, column]
    if cell.value is None:
        return "–"
    return f"{cell.value:.2f}" if cell.error is None else f"{cell.value:.2f} ±{cell.error:.2f}"
