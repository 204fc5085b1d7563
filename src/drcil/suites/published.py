"""The paper's tables and figures as a suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import UserError
from ..paper.asked import Asked, metric_of, runs_of
from ..paper.figures import PaperFigure, published_item
from ..paper.tables import Column, PaperTable
from ..report.measured import Heading
from ..runs.result import leading_metric
from ..runs.settings import make_settings
from .drawings import Drawing, Imbalance, Sweep, TaskCurves
from .entries import Wanted
from .suite import CellPlan, Common, Suite, TablePlan


def paper_suite(names: Sequence[str], common: Common) -> Suite:
    """The tables and figures of these names."""
    items = [published_item(name) for name in names]
    own = tuple(dict.fromkeys(item.name for item in items))
    if len(own) < len(items):
        twice = next(name for name in own if [item.name for item in items].count(name) > 1)
        raise UserError(f"'{twice}' is given twice; name each table once")
    budget = common.words()
    return Suite(
        title=f"{', '.join(own)} of the paper" + (f": {budget}" if budget else ""),
        names=own,
        seeds=common.seeds or 1,
        tables=tuple(_table(item, common) for item in items if isinstance(item, PaperTable)),
        drawings=tuple(
            drawing for item in items if isinstance(item, PaperFigure) for drawing in _drawings(item, common)
        ),
    )


def _table(table: PaperTable, common: Common) -> TablePlan:
    cells = {
        (cell.row, _heading(cell.column, metric_of(cell))): CellPlan(
            metric_of(cell), _wanted(runs, common), cell.value, cell.error, table.orders
        )
        for cell, runs in runs_of(table)
    }
    beside = "published values are of the full budget, so that smaller runs are called neither within nor outside noise"
    whole = all(cell.whole for cell in cells.values())
    return TablePlan(table.name, table.caption if whole else _captioned(table.caption, common, beside), cells)


def _drawings(figure: PaperFigure, common: Common) -> Iterator[Drawing]:
    caption = _captioned(figure.caption, common, "the paper has the full budget")
    for stream in figure.imbalance:
        run = make_settings(method="finetune", stream=stream, **common.options(0))
        yield Imbalance(f"{figure.name}, {stream}", caption, run)
    for stream in figure.curves:
        lines = {row: _wanted([asked], common) for row, asked in figure.lines(stream).items()}
        yield TaskCurves(f"{figure.name}, {stream}", caption, leading_metric(stream), lines, figure.row)
    for setting in figure.sweep:
        points = tuple((value, _wanted([asked], common)) for value, asked in figure.points(setting).items())
        name, metric = f"{figure.name}, {setting}", leading_metric(figure.stream)
        yield Sweep(name, caption, setting, metric, {figure.row: points})


def _wanted(asked: Sequence[Asked], common: Common) -> tuple[Wanted, ...]:
    """The runs of a cell: every class order with every seed."""
    return tuple(
        Wanted(one.method, one.run_settings(**common.options(seed)), (one.stream, *one.details()))
        for seed in range(common.seeds or 1)
        for one in asked
    )


def _heading(column: Column, metric: str) -> Heading:
    return Heading(f"{column.stream}, memory {column.memory}, augmentation {column.augment}", metric)


def _captioned(caption: str, common: Common, beside: str) -> str:
    """With the budget of the runs, where it is not that of the paper."""
    return f"{caption}. Measured with {common.words()}; {beside}." if common.words() else caption
