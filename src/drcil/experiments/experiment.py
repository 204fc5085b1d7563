"""An experiment: tables and plots, and the runs that each cell and point needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator

from ..data.dataset import find_dataset
from ..errors import UserError, unknown_name
from ..files import read_toml
from ..methods.catalog import changed_settings, named_method
from ..methods.recipe import load_profile
from ..metrics import require_figure
from ..runs.plan import canonical_settings, complete
from ..runs.result import leading_metric
from ..settings import SEEDS, TASKS, RunSettings, describe_validation_error, dotted
from ..streams.protocols import ORDER_SEED, known_tasks, parse_stream
from .jobs import RunRequest, current_method_settings, may_choose_memory
from .summary import COUNTS, MetricColumns
from .tables import Heading

Keep = Callable[[str, RunSettings, str], bool]
"""Whether a row or line is selected, by its name, a run of it, and the label of that run."""


class Common:
    """What all runs of a suite share: the number of seeds of each cell, and options of a run by name."""

    def __init__(self, seeds: int | None = None, **values: Any) -> None:
        self.seeds, self.values = seeds, values

    def options(self, seed: int) -> dict[str, Any]:
        """The options of a run."""
        return {**self.values, "seed": seed}

    def budget_text(self) -> str:
        """The budget of the runs, where it is not the full one."""
        values = {"profile": "full", "epochs_scale": 1.0, **self.values}
        parts = [] if values["profile"] == "full" else [f"profile {values['profile']}"]
        parts += [] if values["epochs_scale"] == 1.0 else [f"{values['epochs_scale'] * 100:.4g} % of the epochs"]
        parts += [f"schedule {values['schedule']}"] if "schedule" in values else []
        for name, label in (("epochs", "epochs"), ("lr", "learning rate"), ("batch_size", "batch size")):
            parts += [f"{label} {values[name]}"] if name in values else []
        parts += [f"images of {values['image_size']} pixels"] if "image_size" in values else []
        if "tasks" in values:
            parts.append("the first task" if values["tasks"] == 1 else f"the first {values['tasks']} tasks")
        return ", ".join(parts)


@dataclass(frozen=True)
class CellPlan:
    """A cell: the runs whose mean it is, and the published value."""

    metric: str
    runs: tuple[RunRequest, ...]
    published: float | None = None
    error: float | None = None
    published_orders: int = 1
    """The number of class orders whose mean was published."""

    @cached_property
    def full_budget(self) -> bool:
        """Whether its runs have the full budget."""
        settings = [request.settings for request in self.runs]
        return all(canonical_settings(run).has_full_budget for run in settings)


@dataclass(frozen=True)
class TablePlan:
    """A table before anything is measured."""

    name: str
    caption: str
    cells: Mapping[tuple[str, Heading], CellPlan]

    def select(self, keep: Keep) -> TablePlan:
        cells = {}
        for (row, heading), cell in self.cells.items():
            if keep(row, cell.runs[0].settings, cell.runs[0].label):
                cells[row, heading] = cell
        return replace(self, cells=cells)


@dataclass(frozen=True)
class PlotPlan:
    """A plot before anything is measured.

    ``tasks``: accuracy after each task against the classes seen. ``sweep``: a metric against the values of a setting.
    ``images``: the images of a new and of an old class, task by task; nothing is trained.
    """

    kind: Literal["tasks", "sweep", "images"]
    name: str
    caption: str
    metric: str = ""
    lines: Mapping[str, tuple[tuple[float, tuple[RunRequest, ...]], ...]] = field(default_factory=dict)
    """The runs of each point of a sweep; a line of ``tasks`` has one point with all its runs."""
    setting: str = ""
    """The setting of a sweep."""
    highlight: str = ""
    """The line that stands out."""
    inspected: RunSettings | None = None
    """The run whose images are counted."""

    def requests(self) -> Iterator[RunRequest]:
        for line in self.lines.values():
            for _, requests in line:
                yield from requests

    def select(self, keep: Keep) -> PlotPlan:
        lines = {}
        for name, line in self.lines.items():
            first = line[0][1][0]
            if keep(name, first.settings, first.label):
                lines[name] = line
        inspected = self.inspected if self.inspected is not None and keep("", self.inspected, "") else None
        return replace(self, lines=lines, inspected=inspected)


@dataclass(frozen=True)
class Experiment:
    """Tables and plots that belong together."""

    title: str
    names: tuple[str, ...]
    """What was requested: methods, tables and figures, or a file."""
    tables: tuple[TablePlan, ...] = ()
    plots: tuple[PlotPlan, ...] = ()
    seeds: int = 1
    """Runs of each cell and class order."""
    definition: Mapping[str, Any] = field(default_factory=dict)
    """What tells it from others of these names: the content of its file, the settings that its runs share."""

    def requests(self) -> list[RunRequest]:
        """All runs, some of them several times: first one seed and class order of all cells."""
        cells = (request for table in self.tables for cell in table.cells.values() for request in cell.runs)
        lines = (request for plot in self.plots for request in plot.requests())
        return sorted((*cells, *lines), key=lambda request: (request.settings.seed, request.settings.order_seed))

    def inspected(self) -> tuple[RunSettings, ...]:
        """Runs whose images are counted."""
        return tuple(plot.inspected for plot in self.plots if plot.inspected is not None)

    def select(self, rows: str | None, columns: list[str]) -> Experiment:
        """The part in these rows (by their names, or by methods) and columns (by streams, or by datasets)."""
        known_columns = {name for request in self.requests() for name in _column_names(request.settings)}
        for column in columns:
            if column not in known_columns:
                raise unknown_name("column", column, known_columns)
        selected = None if rows is None else self._selected_rows(rows)

        def keep(row: str, run: RunSettings, label: str) -> bool:
            in_rows = selected is None or not selected.isdisjoint(map(_row_key, (row, label)))
            return in_rows and (not columns or not _column_names(run).isdisjoint(columns))

        tables = (table.select(keep) for table in self.tables)
        plots = (plot.select(keep) for plot in self.plots)
        part = replace(
            self,
            tables=tuple(table for table in tables if table.cells),
            plots=tuple(plot for plot in plots if plot.lines or plot.inspected is not None),
        )
        if not part.tables and not part.plots:
            raise UserError(f"no cell of {', '.join(self.names)} is both in these rows and in these columns")
        return part

    def _selected_rows(self, text: str) -> set[str]:
        """The rows and methods of a list. A name may contain commas: the longest name that is known is taken."""
        rows = {row for table in self.tables for row, _ in table.cells}
        rows |= {row for plot in self.plots for row in plot.lines}
        if not rows:
            raise UserError(f"{', '.join(self.names)} has no rows to choose from; leave out --rows")
        keys = {_row_key(name) for name in (*rows, *(request.label for request in self.requests()))}
        parts, selected = [part.strip() for part in text.split(",")], set[str]()
        while parts:
            names = (_row_key(",".join(parts[:end])) for end in range(len(parts), 0, -1))
            name = next((name for name in names if name in keys), None)
            if name is None:
                raise unknown_name("row", parts[0], rows)
            selected.add(name)
            parts = parts[name.count(",") + 1 :]
        return selected


def comparison(
    methods: Sequence[str], settings: Mapping[str, Sequence[RunSettings]], seeds: int, metric: str | None = None
) -> Experiment:
    """Methods on streams: a table and a plot for each stream, in which the first method stands out.

    ``settings``: by stream, those of each method. ``metric``: the one that leads; None: the one of the stream.
    """
    tables, plots = [], []
    for stream, of_methods in settings.items():
        leading = metric or leading_metric(stream)
        columns = [Heading(stream, name) for name in (*MetricColumns.on(stream, leading).names, *COUNTS)]
        cells: dict[tuple[str, Heading], CellPlan] = {}
        lines = {}
        for method, run in zip(methods, of_methods, strict=True):
            runs = tuple(RunRequest(method, run.model_copy(update={"seed": seed})) for seed in range(seeds))
            cells |= {(method, column): CellPlan(column.metric, runs) for column in columns}
            lines[method] = ((0.0, runs),)
        tables.append(TablePlan(stream, "Metrics of every method", cells))
        plots.append(PlotPlan("tasks", stream, "Accuracy after each task", leading, lines, highlight=methods[0]))
    first = next(iter(settings.values()))[0].identity()
    shared = {name: value for name, value in first.items() if name not in ("method", "seed", "stream")}
    return Experiment(
        title=f"{', '.join(methods)} on {', '.join(settings)}",
        names=tuple(methods),
        tables=tuple(tables),
        plots=tuple(plots),
        seeds=seeds,
        definition={**shared, "streams": list(settings)},
    )


def checked_requests(experiment: Experiment, threads: int | None) -> list[RunRequest]:
    """All requests, with so many threads if theirs are not set; or the error of one, before there is a directory."""
    requests = []
    for request in experiment.requests():
        settings = request.settings
        if threads is not None and settings.threads is None:
            request = replace(request, settings=settings.model_copy(update={"threads": threads}))
        requests.append(request)
    for run in {request.key: request.settings for request in requests}.values():
        current_method_settings(run)
        tasks = known_tasks(run.stream)
        if run.tasks is not None and tasks is not None and run.tasks > tasks:
            raise UserError(f"stream '{run.stream}' has {tasks} tasks, so a run cannot stop after {run.tasks}")
    return requests


def _row_key(name: str) -> str:
    """A row's name, however it is spaced and in whatever letters."""
    return ", ".join(word.strip() for word in name.lower().split(","))


def _column_names(run: RunSettings) -> set[str]:
    return {run.stream, parse_stream(run.stream).dataset}


def _distinct(values: list[Any]) -> list[Any]:
    """Nothing twice: the second would be the same runs again."""
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{value!r} is given twice")
    return values


def _numbers(values: list[Any]) -> list[int | float]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is no number, and only numbers can be drawn")
    return values


Values = Annotated[list[Any], Field(min_length=1), AfterValidator(_distinct)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
Numbers = Annotated[list[Any], Field(min_length=1), AfterValidator(_numbers), AfterValidator(_distinct)]
Count = Annotated[int, Field(strict=True)]
Point = dict[str, Any]
"""Settings and run options by name: one of the combinations of a grid."""
_OPTIONS = ("memory", "backbone", "augment", "image_size", "epochs_scale", "schedule", "validation", "freeze")
"""Options of a run, which a file may set, and a grid or a sweep may vary, like settings of the method."""
_BUDGET = ("epochs_scale", "schedule", "image_size")
"""Those of them that say how much is spent on a run."""


class SuiteFile(BaseModel):
    """What a suite's file may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str | None = None
    methods: Names
    streams: Names
    seeds: Count = Field(default=1, ge=SEEDS.least, le=SEEDS.most)
    """Runs of everything: seeds 0, 1, …"""
    orders: Count = Field(default=1, ge=1, le=SEEDS.most)
    """Class orders: those of order seeds 1993, 1994, …"""
    tasks: Count | None = Field(default=None, ge=TASKS.least, le=TASKS.most)
    profile: str | None = None
    metrics: Names | None = None
    """Columns of the table; None: the leading metric and the accuracy after the last task."""
    memory: str | StrictInt | None = None
    backbone: str | None = None
    augment: str | None = None
    image_size: int | None = None
    epochs_scale: float | None = None
    schedule: str | None = None
    validation: float | None = None
    freeze: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Of all methods."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """Settings and their values: every combination is run."""
    sweep: dict[str, Numbers] = Field(default_factory=dict)
    """Settings and their values, one setting at a time, each drawn as a plot."""

    @field_validator("settings", "grid", "sweep", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        """TOML reads ``later.lr = 0.1`` as a table within a table; settings have dotted names."""
        return dict(dotted(value)) if isinstance(value, dict) else value


def read_suite(path: Path, common: Common) -> Experiment:
    """The experiment in a file; settings of the command line take precedence."""
    try:
        file = SuiteFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {describe_validation_error(error)}") from None
    # What a grid varies stands in the names of its rows.
    shared = ("profile", "tasks", *(name for name in _BUDGET if name not in _varied(file)))
    values = {name: getattr(file, name) for name in shared if getattr(file, name) is not None}
    seeds = file.seeds if common.seeds is None else common.seeds
    common = Common(seeds, **{**values, **common.values})
    rows = {_row(method, point): (method, point) for method in file.methods for point in _points(file)}
    runs = {
        (row, stream): _requests(file, common, method, stream, point)
        for row, (method, point) in rows.items()
        for stream in file.streams
    }
    metrics = {stream: _metrics(file, stream) for stream in file.streams}
    cells = {
        (row, Heading(stream, metric)): CellPlan(metric, runs[row, stream])
        for row in rows
        for stream in file.streams
        for metric in metrics[stream]
    }
    title, budget = file.title or path.stem, common.budget_text()
    return Experiment(
        title=title + (f": {budget}" if budget else ""),
        names=(str(path.absolute()),),
        seeds=common.seeds or 1,
        definition={"file": file.model_dump(mode="json", exclude_unset=True)},
        tables=(TablePlan(path.stem, _caption(title, common), cells),),
        plots=tuple(_plots(file, list(rows), runs, metrics)),
    )


def _plots(
    file: SuiteFile,
    rows: Sequence[str],
    runs: Mapping[tuple[str, str], tuple[RunRequest, ...]],
    metrics: Mapping[str, Sequence[str]],
) -> Iterator[PlotPlan]:
    for stream in file.streams:
        lines = {row: ((0.0, runs[row, stream]),) for row in rows}
        highlight = rows[0] if len(rows) == len(file.methods) else ""
        caption = f"Accuracy after each task on {stream}"
        yield PlotPlan("tasks", stream, caption, leading_metric(stream), lines, highlight=highlight)
        for setting, values in file.sweep.items():
            swept = {
                _row(method, point): tuple(
                    (float(value), runs[_row(method, {**point, setting: value}), stream]) for value in values
                )
                for method in file.methods
                for point in _combinations(file.grid)
            }
            caption = f"{setting} from {min(values)} to {max(values)} on {stream}"
            yield PlotPlan("sweep", f"{stream}, {setting}", caption, metrics[stream][0], swept, setting)


def _points(file: SuiteFile) -> list[Point]:
    """The combinations of the grid; where something is swept, with each of its values in turn."""
    combinations = list(_combinations(file.grid))
    for setting in file.sweep:
        if setting in file.grid:
            raise UserError(f"'{setting}' is both in the grid and in the sweep; name it in one of them")
    if not file.sweep:
        return combinations
    values = [(setting, value) for setting, swept in file.sweep.items() for value in swept]
    return [{**point, setting: value} for point in combinations for setting, value in values]


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _requests(file: SuiteFile, common: Common, method: str, stream: str, point: Point) -> tuple[RunRequest, ...]:
    """The runs of a row on a stream: every class order with every seed."""
    options = {name: common.values.get(name, getattr(file, name)) for name in _OPTIONS}
    options |= {name: value for name, value in point.items() if name in _OPTIONS}
    if not may_choose_memory(method):
        options["memory"] = None
    elif type(options["memory"]) is int:
        options["memory"] = str(options["memory"])
    changes = {**file.settings, **common.values.get("settings", {})}
    changes |= {name: value for name, value in point.items() if name not in _OPTIONS}
    spec, data = named_method(method)[0], find_dataset(parse_stream(stream).dataset)[0].spec
    backbone = spec.backbone(data, options["backbone"])
    schedule = options["schedule"] or load_profile(common.values.get("profile", "full"), data.kind, spec.family).get(
        "schedule"
    )
    settings = changed_settings(spec, data.kind, changes, stream, backbone, schedule)
    details = (stream, *_texts(method, point))
    return tuple(
        RunRequest(
            method,
            complete(
                RunSettings.parse(
                    {
                        **common.options(seed),
                        **options,
                        "method": method,
                        "stream": stream,
                        "settings": settings,
                        "order_seed": ORDER_SEED + order,
                    }
                )
            ),
            (*details, *([f"order {ORDER_SEED + order}"] if order else [])),
        )
        for seed in range(common.seeds or 1)
        for order in range(file.orders)
    )


def _metrics(file: SuiteFile, stream: str) -> tuple[str, ...]:
    if file.metrics is None:
        return (leading_metric(stream), "last")
    return tuple(dict.fromkeys(require_figure(metric) for metric in file.metrics))


def _row(method: str, point: Point) -> str:
    return ", ".join([method, *_texts(method, point)])


def _texts(method: str, point: Point) -> list[str]:
    """A point as its method sees it: one whose memory cannot be chosen is the same at all memories, and one row."""
    fixed = () if may_choose_memory(method) else ("memory",)
    return [f"{name}={value}" for name, value in point.items() if name not in fixed]


def _varied(file: SuiteFile) -> set[str]:
    return {*file.grid, *file.sweep}


def _caption(title: str, common: Common) -> str:
    """With the budget of the runs, where it is not the full one."""
    budget = common.budget_text()
    return f"{title}; measured with {budget}" if budget else title
