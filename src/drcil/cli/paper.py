"""drcil paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import RunSettings
from .console import console, flush_output, print_json
from .options import PlainJson, takes

if TYPE_CHECKING:
    from ..experiments.cost import CostEstimator, PaperCosts, SpeedCache
    from ..experiments.published import PaperFigure, PaperRun, PaperTable


@takes(RunSettings, only=("device", "precision", "threads"), panels=False)
def paper(
    values: dict[str, Any],
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE|FIGURE", help="Such as T2 or F6; without it all are listed.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Estimate what runs cost here; measures a few training steps of each kind.")
    ] = False,
    json: PlainJson = False,
) -> None:
    """Show the tables and figures of the paper and how many runs each takes."""
    from ..experiments.published import PaperFigure, published_item

    items = _items() if name is None else [published_item(name)]
    costs = _costs(items, values) if cost else None
    if name is None:
        _list(items, costs, json)
    elif isinstance(items[0], PaperFigure):
        _show_figure(items[0], costs, json)
    else:
        _show(items[0], costs, json)
    flush_output()


def _items() -> list[PaperTable | PaperFigure]:
    from ..experiments.published import figures, published

    return [*published().values(), *figures().values()]


def _runs(item: PaperTable | PaperFigure) -> list[PaperRun]:
    from ..experiments.published import PaperFigure, runs_of

    return list(item.runs()) if isinstance(item, PaperFigure) else [run for _, runs in runs_of(item) for run in runs]


def _costs(items: Sequence[PaperTable | PaperFigure], values: dict[str, Any]) -> PaperCosts:
    """Estimate the time of all runs."""
    from ..experiments.cost import PaperCosts, SpeedCache

    with measuring(SpeedCache()) as estimator:
        runs = [run for item in items for run in _runs(item)]
        engine = {"device": values.get("device", "auto"), "precision": values.get("precision", "32")}
        return PaperCosts.estimate(runs, estimator, engine, values.get("threads"))


def _list(items: Sequence[PaperTable | PaperFigure], costs: PaperCosts | None, json: bool) -> None:
    from ..experiments.published import PaperFigure, trained_once
    from ..experiments.writers import entries_table
    from ..train.progress import rough

    entries, everything = [], []
    for item in items:
        runs = _runs(item)
        seconds = costs.total(runs) if costs else None
        cells = 0 if isinstance(item, PaperFigure) else sum(cell.value is not None for cell in item.cells.values())
        cost = "–" if seconds is None or not runs else rough(seconds)
        entry = {"name": item.name, "caption": item.caption, "cells": cells, "runs": len(trained_once(runs))}
        entries.append({**entry, **({"seconds": seconds} if json else {"cost": cost})})
        everything += runs
    if json:
        print_json(entries)
        return
    console().print(entries_table(entries, () if costs else ("cost",)))
    console().print(f"All together, each run once: {_run_count(everything, costs)}", soft_wrap=True)


def _run_count(runs: Sequence[PaperRun], costs: PaperCosts | None) -> str:
    """The number of runs and their time, or how to estimate it."""
    from ..experiments.published import trained_once
    from ..train.progress import rough

    number = len(trained_once(runs))
    count = "1 run" if number == 1 else f"{number} runs"
    if not number:
        return "nothing is trained."
    if costs is None:
        return f"{count}; add --cost to estimate their time here."
    seconds = costs.total(runs)
    if seconds is None:
        return f"{count}; the time of some of them cannot be estimated."
    return f"{count}, about {rough(seconds)} one at a time on this machine ({costs.conditions}), if it is idle."


def _show_figure(figure: PaperFigure, costs: PaperCosts | None, json: bool) -> None:
    """Print the runs of a figure, which has no published numbers."""
    from ..experiments.published import trained_once

    runs = trained_once(figure.runs())
    if json:
        print_json([{"run": run.command(), "seconds": costs.total([run]) if costs else None} for run in runs])
        return
    console().print(f"{figure.name}: {figure.caption}", soft_wrap=True)
    for paper_run in runs:
        console().print(paper_run.command(), markup=False, soft_wrap=True)
    console().print(_run_count(runs, costs), soft_wrap=True)


def _show(table: PaperTable, costs: PaperCosts | None, json: bool) -> None:
    from ..experiments.published import runs_of
    from ..experiments.writers import published_tables

    if json:
        print_json(
            [
                {
                    "row": cell.row,
                    "stream": cell.column.stream,
                    "metric": cell.column.metric,
                    "value": cell.value,
                    "error": cell.error,
                    "runs": [run.command() for run in runs],
                    "seconds": costs.total(runs) if costs else None,
                }
                for cell, runs in runs_of(table)
            ]
        )
        return
    console().print(f"{table.name}: {table.caption}", soft_wrap=True)
    for heading, rendered in published_tables(table):
        console().print(heading, soft_wrap=True)
        console().print(rendered)
    if table.note:
        console().print(table.note, soft_wrap=True)
    console().print(_run_count(_runs(table), costs), soft_wrap=True)


_WORDS = 70
"""Characters of the name of what is being measured."""


@contextmanager
def measuring(paces: SpeedCache) -> Iterator[CostEstimator]:
    """An estimator of costs; it measures missing speeds of this machine and shows progress on standard error."""
    from ..experiments.cost import CostEstimator
    from ..process import configure

    # As in training processes.
    configure()
    screen, kinds = console(stderr=True), 0
    with screen.status("rehearsing runs") as status:

        def report(kind: str) -> None:
            nonlocal kinds
            if not kinds and not screen.is_terminal:
                screen.print("measuring how fast this machine trains, a few steps of each kind", soft_wrap=True)
            kinds += 1
            short = kind if len(kind) <= _WORDS else f"{kind[:_WORDS]}…"
            status.update(f"measuring how fast this machine trains, kind {kinds}: {short}".replace("[", r"\["))

        yield CostEstimator(paces, report)
