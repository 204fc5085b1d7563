"""The paper's tables and figures as data, and the runs behind each cell."""

from __future__ import annotations

import csv
import functools
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from ..data.dataset import find_dataset
from ..errors import FaultError, UserError, unknown_name
from ..methods.catalog import changed_settings, named_method
from ..runs.plan import complete
from ..runs.result import leading_metric
from ..settings import RunSettings
from ..streams.protocols import ORDER_SEED, long_tailed_spec, parse_stream, protocol_memory
from .experiment import CellPlan, Common, Experiment, PlotPlan, TablePlan
from .jobs import RunRequest
from .summary import TITLES
from .tables import Heading


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
class PublishedValue:
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
    cells: Mapping[tuple[str, Column], PublishedValue]
    note: str = ""
    """Where its figures are from, if not from the text of the paper or its supplement."""

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
    package = resources.files(__package__)
    about = tomllib.loads((package / "tables.toml").read_text())
    cells: dict[str, dict[tuple[str, Column], PublishedValue]] = {name: {} for name in about}
    for line in csv.DictReader((package / "published.csv").read_text().splitlines()):
        column = Column(
            line["dataset"],
            line["protocol"],
            int(line["steps"]),
            line["memory"],
            line["augment"],
            line["backbone"],
            line["metric"],
        )
        cells[line["table"]][line["row"], column] = PublishedValue(
            line["table"], line["row"], column, _figure(line["value"]), _figure(line["error"])
        )
    return {
        name: PaperTable(name, entry["caption"], entry.get("orders", 1), cells[name], entry.get("note", ""))
        for name, entry in about.items()
    }


def published_table(name: str) -> PaperTable:
    """A table by its name, such as ``T2``; capitals do not matter."""
    tables = published()
    if name.upper() not in tables:
        raise unknown_name("table", name, tables)
    return tables[name.upper()]


def _figure(printed: str) -> float | None:
    return float(printed) if printed else None


_METHODS = {
    "Replay": "replay",
    "iCaRL": "icarl",
    "EEIL": "eeil",
    "BiC": "bic",
    "WA": "wa",
    "LUCIR": "lucir",
    "PODNet": "podnet",
    "DER w/o P": "der",
    "FOSTER": "foster",
    "FOSTER B4": "foster-b4",
    "DyTox": "dytox",
    "MAF": "maf",
    "MAF(ViT)": "maf-vit",
    "MAF+BFT": "maf+bft",
    "MAF+WA": "maf+wa",
    "MAF+DRC": "maf+drc",
    "MAF+DRC+LA": "mafdrc",
    "MAFRC": "mafrc",
    "MAFDRC": "mafdrc",
    "MAFDRC(ViT)": "mafdrc-vit",
    "MEC": "mec",
    "MEC+DRC": "mecdrc",
    "MDT": "mdt",
    "MDT+DRC": "mdtdrc",
}
"""Our names of the paper's methods."""
_TWO_STAGE = "+Two Stage"
_SWEPT_TOGETHER = {("mafdrc-text", "old_distillation"): ("old_distillation", "new_distillation")}
"""By method and setting: the settings that are one hyper-parameter in the method's definition (beta in equation 13)."""


@dataclass(frozen=True)
class PaperRun:
    """What is to be run for a cell. Equal ones are trained once, whatever tables they are in.

    What a run has anyway (memory, augmentation, backbone, settings of the recipe) is left out, so that a plain run of
    the same method is the same run.
    """

    method: str
    """With its readout, as users name it."""
    stream: str
    memory: str | None
    augment: str | None
    backbone: str | None
    settings: tuple[tuple[str, Any], ...]
    order_seed: int

    @property
    def _options(self) -> dict[str, str]:
        """Those that a plain run would have otherwise."""
        options = {"memory": self.memory, "augment": self.augment, "backbone": self.backbone}
        return {name: value for name, value in options.items() if value is not None}

    def details(self) -> tuple[str, ...]:
        """What a plain run would have otherwise, in words."""
        options = (f"{name} {value}" for name, value in self._options.items())
        order = () if self.order_seed == ORDER_SEED else (f"order {self.order_seed}",)
        return (*options, *(f"{name}={value}" for name, value in self.settings), *order)

    def command(self) -> str:
        """How to run it by itself."""
        arguments = ["drcil", "run", self.method, self.stream]
        for name, value in self._options.items():
            arguments += [f"--{name}", value]
        for name, value in self.settings:
            arguments += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        arguments += [] if self.order_seed == ORDER_SEED else ["--order-seed", str(self.order_seed)]
        return shlex.join(arguments)

    def run_settings(self, **options: Any) -> RunSettings:
        """The run, with further options (profile, data directory, seed …); what is wrong with them is an error."""
        values = {
            **options,
            **self._options,
            "method": self.method,
            "stream": self.stream,
            "order_seed": self.order_seed,
            "settings": {**options.get("settings", {}), **dict(self.settings)},
        }
        return complete(RunSettings.parse(values))


def paper_run(cell: PublishedValue, orders: int = 1) -> tuple[PaperRun, ...]:
    """The runs whose mean is the cell: one for each class order. The paper does not say which orders it took after the
    first; ours are those of the next seeds.
    """
    name, _, exponent = cell.row.partition(" tro=")
    method = _METHODS.get(name.removesuffix(_TWO_STAGE))
    if method is None:
        raise FaultError(f"row '{cell.row}' of table {cell.table} has no method")
    method += "+two-stage" if name.endswith(_TWO_STAGE) else ""
    column = cell.column
    settings = parse_stream(column.stream)
    entry = find_dataset(settings.dataset)[0]
    spec = long_tailed_spec(entry.spec) if settings.tail else entry.spec
    memory = protocol_memory(settings, entry.classes or 0, spec)
    trained, _ = named_method(method)
    values = {"tro": float(exponent)} if exponent else {}
    changes = tuple(changed_settings(trained, spec.kind, values, column.stream).items())
    return tuple(
        PaperRun(
            method=method,
            stream=column.stream,
            memory=None if column.memory == memory else column.memory,
            augment=None if column.augment == spec.augment else column.augment,
            backbone=None if column.backbone == trained.backbone(spec) else column.backbone,
            settings=changes,
            order_seed=seed,
        )
        for seed in range(ORDER_SEED, ORDER_SEED + orders)
    )


def swept(run: PaperRun, setting: str, value: Any) -> PaperRun:
    """The same with one setting at another value, and with it the settings that are the same hyper-parameter."""
    spec, _ = named_method(run.method)
    kind = find_dataset(parse_stream(run.stream).dataset)[0].spec.kind
    names = _SWEPT_TOGETHER.get((spec.name, setting), (setting,))
    values = {**dict(run.settings), **dict.fromkeys(names, value)}
    return replace(run, settings=tuple(changed_settings(spec, kind, values, run.stream, run.backbone).items()))


def metric_of(cell: PublishedValue) -> str:
    """The metric of ours that a cell shows: averages on long-tailed streams are unweighted means over tasks."""
    return "task_avg" if cell.column.protocol.startswith("lt-") else cell.column.metric


def runs_of(table: PaperTable) -> Iterator[tuple[PublishedValue, tuple[PaperRun, ...]]]:
    """Every cell that has a value, with its runs."""
    for cell in table.cells.values():
        if cell.value is not None:
            yield cell, paper_run(cell, table.orders)


def trained(tables: Iterable[PaperTable]) -> tuple[PaperRun, ...]:
    """All that has to be trained for tables, each once; what is read in several ways is one run."""
    return trained_once(run for table in tables for _, runs in runs_of(table) for run in runs)


def trained_once(runs: Iterable[PaperRun]) -> tuple[PaperRun, ...]:
    """Each run once, whatever its readouts."""
    return tuple(dict.fromkeys(replace(run, method=named_method(run.method)[0].name) for run in runs))


_DRAWINGS = ("F2", "F3", "F4")
"""Figures that explain the method and show no numbers."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: counts of images, curves of a table's rows, or settings that are swept."""

    name: str
    caption: str
    table: str = ""
    """Whose rows are drawn."""
    imbalance: tuple[str, ...] = ()
    """Streams whose images are counted."""
    curves: tuple[str, ...] = ()
    """Streams on which accuracy is drawn after each task."""
    row: str = ""
    """The one that it is about: highlighted, or swept."""
    stream: str = ""
    sweep: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The values of each setting that is swept, for the row on the stream."""

    def lines(self, stream: str) -> dict[str, PaperRun]:
        """The rows that are drawn on a stream, and their runs."""
        cells = published_table(self.table).cells.values()
        drawn = (cell for cell in cells if cell.column.stream == stream and cell.value is not None)
        return {cell.row: paper_run(cell)[0] for cell in drawn}

    def points(self, setting: str) -> dict[float, PaperRun]:
        """The values of a setting, and their runs."""
        base = self.lines(self.stream)[self.row]
        return {value: swept(base, setting, value) for value in self.sweep[setting]}

    def runs(self) -> Iterator[PaperRun]:
        """All runs of the figure."""
        for stream in self.curves:
            yield from self.lines(stream).values()
        for setting in self.sweep:
            yield from self.points(setting).values()


@functools.cache
def figures() -> Mapping[str, PaperFigure]:
    """All figures by name."""
    about = tomllib.loads((resources.files(__package__) / "figures.toml").read_text())
    return {
        name: PaperFigure(
            **{
                "name": name,
                **entry,
                "imbalance": tuple(entry.get("imbalance", ())),
                "curves": tuple(entry.get("curves", ())),
                "sweep": {setting: tuple(values) for setting, values in entry.get("sweep", {}).items()},
            }
        )
        for name, entry in about.items()
    }


def published_item(name: str) -> PaperTable | PaperFigure:
    """A table or a figure by its name, such as ``T2`` or ``F6``; capitals do not matter."""
    items: dict[str, PaperTable | PaperFigure] = {**published(), **figures()}
    if name.upper() in _DRAWINGS:
        raise UserError(f"{name.upper()} is a drawing without numbers, so it cannot be shown or run; see 'drcil paper'")
    if name.upper() not in items:
        raise unknown_name("table or figure", name, items)
    return items[name.upper()]


def paper_experiment(names: Sequence[str], common: Common) -> Experiment:
    """The tables and figures of these names."""
    items = [published_item(name) for name in names]
    distinct = tuple(dict.fromkeys(item.name for item in items))
    if len(distinct) < len(items):
        duplicate = next(name for name in distinct if [item.name for item in items].count(name) > 1)
        raise UserError(f"'{duplicate}' is given twice; name each table once")
    budget = common.budget_text()
    return Experiment(
        title=f"{', '.join(distinct)} of the paper" + (f": {budget}" if budget else ""),
        names=distinct,
        seeds=common.seeds or 1,
        tables=tuple(_table(item, common) for item in items if isinstance(item, PaperTable)),
        plots=tuple(plot for item in items if isinstance(item, PaperFigure) for plot in _plots(item, common)),
    )


def _table(table: PaperTable, common: Common) -> TablePlan:
    cells = {}
    for value, runs in runs_of(table):
        column, metric = value.column, metric_of(value)
        heading = Heading(f"{column.stream}, memory {column.memory}, augmentation {column.augment}", metric)
        cells[value.row, heading] = CellPlan(metric, _requests(runs, common), value.value, value.error, table.orders)
    note = "published values are of the full budget, so that smaller runs are called neither within nor outside noise"
    full = all(cell.full_budget for cell in cells.values())
    return TablePlan(table.name, table.caption if full else _with_budget(table.caption, common, note), cells)


def _plots(figure: PaperFigure, common: Common) -> Iterator[PlotPlan]:
    caption = _with_budget(figure.caption, common, "the paper has the full budget")
    for stream in figure.imbalance:
        run = complete(RunSettings.parse({**common.options(0), "method": "finetune", "stream": stream}))
        yield PlotPlan("images", f"{figure.name}, {stream}", caption, inspected=run)
    for stream in figure.curves:
        lines = {row: ((0.0, _requests([run], common)),) for row, run in figure.lines(stream).items()}
        name = f"{figure.name}, {stream}"
        yield PlotPlan("tasks", name, caption, leading_metric(stream), lines, highlight=figure.row)
    for setting in figure.sweep:
        points = tuple((value, _requests([run], common)) for value, run in figure.points(setting).items())
        for metric in (leading_metric(figure.stream), "last"):
            name = f"{figure.name}, {setting}, {TITLES.get(metric, metric)}"
            yield PlotPlan("sweep", name, caption, metric, {figure.row: points}, setting)


def _requests(runs: Sequence[PaperRun], common: Common) -> tuple[RunRequest, ...]:
    """The runs of a cell: every class order with every seed."""
    return tuple(
        RunRequest(run.method, run.run_settings(**common.options(seed)), (run.stream, *run.details()))
        for seed in range(common.seeds or 1)
        for run in runs
    )


def _with_budget(caption: str, common: Common, note: str) -> str:
    """A caption with the budget of the runs, if it is not that of the paper."""
    budget = common.budget_text()
    return f"{caption}. Measured with {budget}; {note}." if budget else caption
