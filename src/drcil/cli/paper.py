"""``drcil paper``: the published tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from ..paper.tables import PaperTable


def paper(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Such as T2; without it all are listed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """Show the tables of the paper, and how many runs each of them takes."""
    from ..paper.tables import published, published_table

    if table is None:
        _list(list(published().values()), json)
    else:
        _show(published_table(table), json)
    require_printed()


def _list(tables: list[PaperTable], json: bool) -> None:
    from ..paper.asked import trained
    from ..report.tables import entries_table

    entries = [
        {
            "table": table.name,
            "caption": table.caption,
            "cells": sum(cell.value is not None for cell in table.cells.values()),
            "runs": len(trained([table])),
        }
        for table in tables
    ]
    if json:
        print_json(entries)
        return
    console().print(entries_table(entries, ()))
    console().print(f"All tables together: {len(trained(tables))} runs, for many of them share some.", soft_wrap=True)


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
