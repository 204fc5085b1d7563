"""A suite of the user's own, from a file: methods × streams × seeds × settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
)

from ..data.datasets.dataset import find_dataset
from ..errors import UserError
from ..limits import SEEDS, TASKS
from ..methods.resolve import unusual_settings
from ..methods.spec import named_method
from ..metrics import require_figure
from ..reading import read_toml
from ..recipes import dotted, load_profile
from ..report.measured import Heading
from ..runs.result import leading_metric
from ..runs.settings import make_settings
from ..streams.protocols import ORDER_SEED, parse_stream
from ..validation import explain
from .drawings import Drawing, Sweep, TaskCurves
from .entries import Wanted, may_choose_memory
from .suite import CellPlan, Common, Suite, TablePlan


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
    def _dotted(cls, given: Any) -> Any:
        """TOML reads ``later.lr = 0.1`` as a table within a table; settings have dotted names."""
        return dict(dotted(given)) if isinstance(given, dict) else given


def read_suite(path: Path, common: Common) -> Suite:
    """The suite in a file; what the command line says goes before it. What is wrong is told in a sentence."""
    try:
        file = SuiteFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}") from None
    common = replace(
        common,
        profile=common.profile or file.profile,
        tasks=file.tasks if common.tasks is None else common.tasks,
        seeds=file.seeds if common.seeds is None else common.seeds,
        # What a grid varies stands in the names of its rows.
        **{name: getattr(file, name) for name in _BUDGET if name not in _varied(file)},
    )
    rows = {_row(method, point): (method, point) for method in file.methods for point in _points(file)}
    runs = {
        (row, stream): _wanted(file, common, method, stream, point)
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
    title, budget = file.title or path.stem, common.words()
    return Suite(
        title=title + (f": {budget}" if budget else ""),
        names=(str(path.absolute()),),
        seeds=common.seeds or 1,
        tables=(TablePlan(path.stem, _caption(title, common), cells),),
        drawings=tuple(_drawings(file, list(rows), runs, metrics)),
    )


def _drawings(
    file: SuiteFile,
    rows: Sequence[str],
    runs: Mapping[tuple[str, str], tuple[Wanted, ...]],
    metrics: Mapping[str, Sequence[str]],
) -> Iterator[Drawing]:
    for stream in file.streams:
        lines = {row: runs[row, stream] for row in rows}
        highlight = rows[0] if len(rows) == len(file.methods) else ""
        yield TaskCurves(stream, f"Accuracy after each task on {stream}", leading_metric(stream), lines, highlight)
        for setting, values in file.sweep.items():
            swept = {
                _row(method, point): tuple(
                    (float(value), runs[_row(method, {**point, setting: value}), stream]) for value in values
                )
                for method in file.methods
                for point in _combinations(file.grid)
            }
            caption = f"{setting} from {min(values)} to {max(values)} on {stream}"
            yield Sweep(f"{stream}, {setting}", caption, setting, metrics[stream][0], swept)


def _points(file: SuiteFile) -> list[Point]:
    """The combinations of the grid; where something is swept, with each of its values in turn."""
    combinations = list(_combinations(file.grid))
    for setting in file.sweep:
        if setting in file.grid:
            raise UserError(f"'{setting}' is both in the grid and in the sweep; name it in one of them")
    if not file.sweep:
        return combinations
    values = [(setting, value) for setting, own in file.sweep.items() for value in own]
    return [{**point, setting: value} for point in combinations for setting, value in values]


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _wanted(file: SuiteFile, common: Common, method: str, stream: str, point: Point) -> tuple[Wanted, ...]:
    """The runs of a row on a stream: every class order with every seed."""
    chosen = {name: getattr(file, name) for name in _OPTIONS} | {
        name: value for name, value in point.items() if name in _OPTIONS
    }
    if not may_choose_memory(method):
        chosen["memory"] = None
    elif type(chosen["memory"]) is int:
        chosen["memory"] = str(chosen["memory"])
    given = {**file.settings, **{name: value for name, value in point.items() if name not in _OPTIONS}}
    spec, data = named_method(method)[0], find_dataset(parse_stream(stream).dataset)[0].spec
    backbone = spec.backbone(data, chosen["backbone"])
    schedule = chosen["schedule"] or load_profile(common.profile or "full", data.kind, spec.family).get("schedule")
    settings = unusual_settings(spec, data.kind, given, stream, backbone, schedule)
    details = (stream, *_words(method, point))
    return tuple(
        Wanted(
            method,
            make_settings(
                **{**common.options(seed), **chosen},
                method=method,
                stream=stream,
                settings=settings,
                order_seed=ORDER_SEED + order,
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
    return ", ".join([method, *_words(method, point)])


def _words(method: str, point: Point) -> list[str]:
    """A point as its method sees it: one whose memory cannot be chosen is the same at all memories, and one row."""
    fixed = () if may_choose_memory(method) else ("memory",)
    return [f"{name}={value}" for name, value in point.items() if name not in fixed]


def _varied(file: SuiteFile) -> set[str]:
    return {*file.grid, *file.sweep}


def _caption(title: str, common: Common) -> str:
    """With the budget of the runs, where it is not the full one."""
    return f"{title}; measured with {common.words()}" if common.words() else title
