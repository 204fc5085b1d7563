"""``drcil paper``: the published tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from ..paper.asked import Asked
    from ..paper.figures import PaperFigure
    from ..paper.tables import PaperTable
    from ..suites.prices import Prices


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE|FIGURE", help="Such as T2 or F6; without it all are listed.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Estimate what runs cost here; measures a few training steps of each kind.")
    ] = False,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Show the tables and figures of the paper, how many runs each takes, and what these cost on this machine.

    An estimate is kept: it is shown from then on.
    """
    from ..paper.figures import PaperFigure, published_item

    items = _items() if name is None else [published_item(name)]
    prices = _prices(items, cost, device or "auto", precision or "32", threads)
    if name is None:
        _list(items, prices, json)
    elif isinstance(items[0], PaperFigure):
        _show_figure(items[0], prices, json)
    else:
        _show(items[0], prices, json)
    require_printed()


def _items() -> list[PaperTable | PaperFigure]:
    from ..paper.figures import figures
    from ..paper.tables import published

    return [*published().values(), *figures().values()]


def _runs(item: PaperTable | PaperFigure) -> list[Asked]:
    from ..paper.asked import runs_of
    from ..paper.figures import PaperFigure

    return list(item.runs()) if isinstance(item, PaperFigure) else [one for _, asked in runs_of(item) for one in asked]


def _prices(
    items: Sequence[PaperTable | PaperFigure], cost: bool, device: str, precision: str, threads: int | None
) -> Prices:
    """What is known of their cost; with ``cost`` all of it."""
    import torch

    from ..suites.paces import Paces
    from ..suites.prices import find_prices, known_prices
    from .costs import measuring

    paces = Paces()
    known = known_prices(paces, device, precision, threads or torch.get_num_threads())
    if not cost:
        return known
    engine = {"device": device, "precision": precision}
    with measuring(paces) as costs:
        everything = [one for item in items for one in _runs(item)]
        return find_prices(
            everything, costs, paces, lambda one: one.run_settings(engine=engine, threads=threads), known.conditions
        )


def _list(items: Sequence[PaperTable | PaperFigure], prices: Prices, json: bool) -> None:
    from ..paper.asked import trained_once
    from ..paper.figures import PaperFigure
    from ..report.progress import rough
    from ..report.tables import entries_table

    entries, everything = [], []
    for item in items:
        runs, seconds = _runs(item), prices.of(_runs(item))
        cells = 0 if isinstance(item, PaperFigure) else sum(cell.value is not None for cell in item.cells.values())
        known = "–" if seconds is None or not runs else rough(seconds)
        entry = {"name": item.name, "caption": item.caption, "cells": cells, "runs": len(trained_once(runs))}
        entries.append({**entry, **({"seconds": seconds} if json else {"cost": known})})
        everything += runs
    if json:
        print_json(entries)
        return
    nothing = all(entry["cost"] == "–" for entry in entries)
    console().print(entries_table(entries, ("cost",) if nothing else ()))
    words = _words(len(trained_once(everything)), prices.of(everything), prices)
    console().print(f"All together, for many share some: {words}", soft_wrap=True)


def _words(runs: int, seconds: float | None, prices: Prices) -> str:
    """How many runs, and what they cost; or how to find that out."""
    from ..report.progress import rough

    count = "1 run" if runs == 1 else f"{runs} runs"
    if not runs:
        return "nothing is trained."
    if seconds is None:
        how = (
            "it cannot be foretold what some of them cost"
            if prices.sought
            else "add --cost to estimate their time here"
        )
        return f"{count}; {how}."
    return f"{count}, about {rough(seconds)} one at a time on this machine ({prices.conditions}), if it is idle."


def _show_figure(figure: PaperFigure, prices: Prices, json: bool) -> None:
    """Nothing is published of it in numbers; so, what is run for it."""
    from ..paper.asked import trained_once

    runs = trained_once(figure.runs())
    if json:
        print_json([{"run": one.command(), "seconds": prices.of([one])} for one in runs])
        return
    console().print(f"{figure.name}: {figure.caption}", soft_wrap=True)
    for one in runs:
        console().print(one.command(), markup=False, soft_wrap=True)
    console().print(_words(len(runs), prices.of(runs), prices), soft_wrap=True)


def _show(table: PaperTable, prices: Prices, json: bool) -> None:
    from ..paper.asked import runs_of, trained_once
    from ..paper.shown import published_tables

    if json:
        print_json(
            [
                {
                    "row": cell.row,
                    "stream": cell.column.stream,
                    "metric": cell.column.metric,
                    "value": cell.value,
                    "error": cell.error,
                    "runs": [one.command() for one in asked],
                    "seconds": prices.of(asked),
                }
                for cell, asked in runs_of(table)
            ]
        )
        return
    console().print(f"{table.name}: {table.caption}", soft_wrap=True)
    for heading, shown in published_tables(table):
        console().print(heading, soft_wrap=True)
        console().print(shown)
    runs = _runs(table)
    console().print(_words(len(trained_once(runs)), prices.of(runs), prices), soft_wrap=True)
