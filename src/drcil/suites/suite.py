"""A suite: tables and plots, and the runs that each of their cells and points asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UserError, unknown
from ..report.measured import Heading
from ..runs.plain import plain
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
    epochs_scale: float | None = None
    schedule: str | None = None
    image_size: int | None = None

    def options(self, seed: int) -> dict[str, Any]:
        """As options of a run."""
        own = {"profile": self.profile, "tasks": self.tasks, "data": self.data, "threads": self.threads}
        budget = {"epochs_scale": self.epochs_scale, "schedule": self.schedule, "image_size": self.image_size}
        return {**own, **budget, "engine": dict(self.engine), "seed": seed}

    def words(self) -> str:
        """On what budget runs are, where it is not the full one."""
        parts = [f"profile {self.profile}"] if self.profile not in (None, "full") else []
        parts += [] if self.epochs_scale in (None, 1.0) else [f"{self.epochs_scale * 100:.4g} % of the epochs"]
        parts += [] if self.schedule is None else [f"schedule {self.schedule}"]
        parts += [] if self.image_size is None else [f"images of {self.image_size} pixels"]
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

    @property
    def whole(self) -> bool:
        """Whether its runs have the full budget."""
        return all(one.settings.profile == "full" and plain(one.settings).tasks is None for one in self.wanted)


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
    seeds: int = 1
    """Runs of each cell and class order."""

    def wanted(self) -> list[Wanted]:
        """All runs, some of them several times. First one seed and class order of all: half a suite is one too."""

        def every() -> Iterator[Wanted]:
            for table in self.tables:
                for cell in table.cells.values():
                    yield from cell.wanted
            for drawing in self.drawings:
                yield from drawing.wanted()

        return sorted(every(), key=lambda one: (one.settings.seed, one.settings.order_seed))

    def narrowed(self, rows: str | None, columns: list[str]) -> Suite:
        """The part in these rows (by their names, or by methods) and columns (by streams, or by datasets)."""
        known_columns = {name for one in self.wanted() for name in _column_names(one.settings)}
        for column in columns:
            if column not in known_columns:
                raise unknown("column", column, known_columns)
        chosen = None if rows is None else self._chosen_rows(rows)

        def keep(row: str, run: RunSettings, method: str) -> bool:
            in_rows = chosen is None or not chosen.isdisjoint(map(_row_key, (row, method)))
            return in_rows and (not columns or not _column_names(run).isdisjoint(columns))

        tables = tuple(table.narrowed(keep) for table in self.tables)
        drawings = tuple(drawing.narrowed(keep) for drawing in self.drawings)
        part = replace(
            self,
            tables=tuple(table for table in tables if table.cells),
            drawings=tuple(drawing for drawing in drawings if drawing),
        )
        if not part.tables and not part.drawings:
            raise UserError(f"no cell of {', '.join(self.names)} is both in these rows and in these columns")
        return part

    def _chosen_rows(self, given: str) -> set[str]:
        """The rows and methods that a list names. A name may have commas itself: the longest that is one is meant."""
        shown, methods = set[str](), set[str]()

        def note(row: str, run: RunSettings, method: str) -> bool:
            shown.add(row)
            methods.add(method)
            return True

        for table in self.tables:
            table.narrowed(note)
        for drawing in self.drawings:
            drawing.narrowed(note)
        if shown <= {""}:
            raise UserError(f"{', '.join(self.names)} has no rows to choose from; leave out --rows")
        known = {*map(_row_key, shown), *map(_row_key, methods)}
        words, chosen = [word.strip() for word in given.split(",")], set[str]()
        while words:
            names = (_row_key(",".join(words[:end])) for end in range(len(words), 0, -1))
            name = next((name for name in names if name in known), None)
            if name is None:
                raise unknown("row", words[0], shown - {""})
            chosen.add(name)
            words = words[name.count(",") + 1 :]
        return chosen


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


def _row_key(name: str) -> str:
    """A row's name, however it is spaced and in whatever letters."""
    return ", ".join(word.strip() for word in name.lower().split(","))


def _column_names(run: RunSettings) -> set[str]:
    return {run.stream, parse_stream(run.stream).dataset}
