"""``drcil paper``: the published tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from ..paper.figures import PaperFigure
    from ..paper.tables import PaperTable


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE|FIGURE", help="Such as T2 or F6; without it all are listed.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Show the tables and figures of the paper, and how many runs each of them takes."""
    from ..paper.figures import PaperFigure, published_item

    if name is None:
        _list(json)
    else:
        item = published_item(name)
        _show_figure(item, json) if isinstance(item, PaperFigure) else _show(item, json)
    require_printed()


def _list(json: bool) -> None:
    from ..paper.asked import runs_of, trained_once
    from ..paper.figures import figures
    from ..paper.tables import published
    from ..report.tables import entries_table

    entries, everything = [], []
    for table in published().values():
        runs = [one for _, asked in runs_of(table) for one in asked]
        cells = sum(cell.value is not None for cell in table.cells.values())
        entries.append({"name": table.name, "caption": table.caption, "cells": cells, "runs": len(trained_once(runs))})
        everything += runs
    for figure in figures().values():
        runs = list(figure.runs())
        entries.append({"name": figure.name, "caption": figure.caption, "cells": 0, "runs": len(trained_once(runs))})
        everything += runs
    if json:
        print_json(entries)
        return
    console().print(entries_table(entries, ()))
    console().print(f"All together: {len(trained_once(everything))} runs, for many share some.", soft_wrap=True)


def _show_figure(figure: PaperFigure, json: bool) -> None:
    """Nothing is published of it in numbers; so, what is run for it."""
    commands = list(dict.fromkeys(one.command() for one in figure.runs()))
    if json:
        print_json(commands)
        return
    console().print(f"{figure.name}: {figure.caption}", soft_wrap=True)
    for command in commands:
        console().print(command, markup=False, soft_wrap=True)


def _show(table: PaperTable, json: bool) -> None:
    from ..paper.asked import runs_of
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
                }
                for cell, asked in runs_of(table)
            ]
        )
        return
    console().print(f"{table.name}: {table.caption}", soft_wrap=True)
    for heading, shown in published_tables(table):
        console().print(heading, soft_wrap=True)
        console().print(shown)
