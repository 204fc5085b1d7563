"""``drcil data``: check a dataset that is there, fetch one that is not."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DataPlace, Plugin
from .output import console

app = typer.Typer(help="Check or fetch datasets.")

_Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="See 'drcil list datasets'.")]


@app.command()
def check(dataset: _Dataset, data: DataPlace = None, plugin: Plugin = None) -> None:
    """Verify a dataset: checksums, sizes and every file on disk. Exit code 1 if something is damaged."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..data.datasets.check import check_dataset

    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("decoding", total=None, visible=False)
        report = check_dataset(
            dataset, data, lambda done, total: progress.update(bar, completed=done, total=total, visible=True)
        )
    for line in (*report.facts, *report.problems):
        print(line)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def fetch(dataset: _Dataset, data: DataPlace = None, plugin: Plugin = None) -> None:
    """Download a dataset. Valid files are kept; partial downloads resume."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from ..data.datasets.fetch import fetch as download
    from ..data.datasets.place import data_directory

    screen = console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("downloading", total=None, visible=False)
        folder = download(
            dataset,
            data_directory(data),
            progress=lambda done, total: progress.update(bar, completed=done, total=total, visible=True),
        )
    print(folder)
