"""The published tables, cell by cell. Values are as printed; a dash in the paper is a cell without a value."""

from __future__ import annotations

import csv
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from ..errors import unknown


@dataclass(frozen=True)
class Column:
    """What a column of a table measures, on which data."""

    dataset: str
    protocol: str
    """``b0``, ``b50``, ``lt-ordered-b50`` or ``lt-shuffled-b50``."""
    steps: int
    memory: str
    augment: str
    backbone: str
    metric: str
    """``avg`` or ``last``."""

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return f"{self.dataset}-{self.protocol}-{self.steps}"


@dataclass(frozen=True)
class Cell:
    """A published figure."""

    table: str
    row: str
    """The method, as the paper calls it."""
    column: Column
    value: float | None
    """In percent; None: the paper has a dash."""
    error: float | None = None
    """The standard error of the mean, where it is given."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper (T1 to T8) or of its supplement (S1 to S12)."""

    name: str
    caption: str
    orders: int
    """Over how many class orders its figures are means."""
    cells: Mapping[tuple[str, Column], Cell]

    @property
    def rows(self) -> tuple[str, ...]:
        """The methods, as the paper calls them, from top to bottom."""
        return tuple(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> tuple[Column, ...]:
        """From left to right."""
        return tuple(dict.fromkeys(column for _, column in self.cells))


@functools.cache
def published() -> Mapping[str, PaperTable]:
    """All published tables by name."""
    place = resources.files(__package__)
    about = tomllib.loads((place / "tables.toml").read_text())
    cells: dict[str, dict[tuple[str, Column], Cell]] = {name: {} for name in about}
    for line in csv.DictReader((place / "published.csv").read_text().splitlines()):
        column = Column(
            line["dataset"],
            line["protocol"],
            int(line["steps"]),
            line["memory"],
            line["augment"],
            line["backbone"],
            line["metric"],
        )
        cells[line["table"]][line["row"], column] = Cell(
            line["table"], line["row"], column, _figure(line["value"]), _figure(line["error"])
        )
    return {
        name: PaperTable(name, words["caption"], words.get("orders", 1), cells[name]) for name, words in about.items()
    }


def published_table(name: str) -> PaperTable:
    """A table by its name, such as ``T2``; capitals do not matter."""
    tables = published()
    if name.upper() not in tables:
        raise unknown("table", name, tables)
    return tables[name.upper()]


def _figure(printed: str) -> float | None:
    return float(printed) if printed else None
