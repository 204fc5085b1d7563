"""A suite: tables and plots, and the runs that each of their cells and points asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UserError, unknown
from ..report.measured import Heading
from ..runs.settings import RunSettings
from ..streams.protocols import known_tasks, parse_stream
from .drawings import Drawing, Keep
from .entries import Wanted, share_cores
from .reuse import present_settings


@dataclass(frozen=True)
class Common:
    """What all runs of a suite have alike; None: not said."""

    profile: str | None = None
    tasks: int | None = None
    seeds: int | None = None
    """Runs of each cell: seeds 0, 1, …"""
    data: str | None = None
    threads: int | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)

    def options(self, seed: int) -> dict[str, Any]:
        """As options of a run."""
        own = {"profile": self.profile, "tasks": self.tasks, "data": self.data, "threads": self.threads}
        return {**own, "engine": dict(self.engine), "seed": seed}

    def words(self) -> str:
        """On what budget runs are, where it is not the full one."""
        parts = [f"profile {self.profile}"] if self.profile not in (None, "full") else []
        if self.tasks is not None:
            parts.append("the first task" if self.tasks == 1 else f"the first {self.tasks} tasks")
        return ", ".join(parts)


@dataclass(frozen=True)
class CellPlan:
    """A cell: the runs whose mean it is, and what was published."""

    metric: str
    wanted: tuple[Wanted, ...]
    published: float | None = None
    error: float | None = None
    published_runs: int = 1
    """Of how many class orders it was published as the mean."""


@dataclass(frozen=True)
class TablePlan:
    """A table before anything is measured."""

    name: str
    caption: str
    cells: Mapping[tuple[str, Heading], CellPlan]

    def narrowed(self, keep: Keep) -> TablePlan:
        """With the cells that are kept."""

        def kept(row: str, run: Wanted) -> bool:
            return keep(row, run.settings, run.method)

        return replace(self, cells={at: cell for at, cell in self.cells.items() if kept(at[0], cell.wanted[0])})


@dataclass(frozen=True)
class Suite:
    """All that one command runs."""

    title: str
    names: tuple[str, ...]
    """What was asked for: tables and figures, or a file."""
    tables: tuple[TablePlan, ...] = ()
    drawings: tuple[Drawing, ...] = ()

    def wanted(self) -> list[Wanted]:
        """All runs, some of them several times. First one seed and class order of all: half a suite is one too."""

        def every() -> Iterator[Wanted]:
            for table in self.tables:
                for cell in table.cells.values():
                    yield from cell.wanted
            for drawing in self.drawings:
                yield from drawing.wanted()

        return sorted(every(), key=lambda one: (one.settings.seed, one.settings.order_seed))

    def narrowed(self, rows: list[str], columns: list[str]) -> Suite:
        """The part in these rows (by their names, or by methods) and columns (by streams, or by datasets)."""
        wanted = self.wanted()
        known_columns = {name for one in wanted for name in _column_names(one.settings)}
        for column in columns:
            if column not in known_columns:
                raise unknown("column", column, known_columns)
        lowered, met, known_rows = {row.lower() for row in rows}, set(), set()

        def keep(row: str, run: RunSettings, method: str) -> bool:
            known_rows.add(row)
            names = {row.lower(), method} & lowered
            met.update(names)
            return (not rows or bool(names)) and (not columns or not _column_names(run).isdisjoint(columns))

        tables = tuple(table.narrowed(keep) for table in self.tables)
        drawings = tuple(drawing.narrowed(keep) for drawing in self.drawings)
        for row in rows:
            if row.lower() not in met:
                if known_rows <= {""}:
                    raise UserError(f"{', '.join(self.names)} has no rows to choose from; leave out --rows")
                raise unknown("row", row, known_rows - {""})
        part = replace(
            self,
            tables=tuple(table for table in tables if table.cells),
            drawings=tuple(drawing for drawing in drawings if drawing),
        )
        if not part.tables and not part.drawings:
            raise UserError(f"no cell of {', '.join(self.names)} is both in these rows and in these columns")
        return part


def checked_runs(suite: Suite, threads: int | None) -> list[Wanted]:
    """All runs, with so many threads unless it is said; or what is wrong with one, before there is a directory."""
    wanted = [replace(one, settings=share_cores(one.settings, threads)) for one in suite.wanted()]
    for one in {one.key: one.settings for one in wanted}.values():
        present_settings(one)
        require_enough_tasks(one)
    return wanted


def require_enough_tasks(run: RunSettings) -> None:
    """A run cannot stop after more tasks than its stream has, where that is known before the data is loaded."""
    tasks = known_tasks(run.stream)
    if run.tasks is not None and tasks is not None and run.tasks > tasks:
        raise UserError(f"stream '{run.stream}' has {tasks} tasks, so a run cannot stop after {run.tasks}")


def _column_names(run: RunSettings) -> set[str]:
    return {run.stream, parse_stream(run.stream).dataset}
