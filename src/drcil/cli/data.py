"""``drcil data``: check a dataset that is there, fetch one that is not, see how uneven a stream is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..limits import ORDER_SEED
from .checks import a_budget, usable, within
from .options import DataPlace, Plugin, Stream
from .output import console, print_json

app = typer.Typer(help="Check or fetch datasets; see how uneven a stream is.")

_Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="See 'drcil list datasets'.")]


@app.command()
def check(dataset: _Dataset, data: DataPlace = None, plugin: Plugin = None) -> None:
    """Verify a dataset: checksums, sizes and every file on disk. Exit code 1 if something is damaged.

    Of a long-tailed one, such as cifar100-lt-shuffled, the training images of each class are printed, too.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..data.datasets.check import check_dataset
    from ..streams.longtail import split_tail
    from ..streams.stream import make_stream

    whole, tail = split_tail(dataset)
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("decoding", total=None, visible=False)
        report = check_dataset(
            whole, data, lambda done, total: progress.update(bar, completed=done, total=total, visible=True)
        )
    facts = list(report.facts)
    if tail is not None:
        counts = make_stream(f"{dataset}-b0-1", report.dataset).counts()
        facts.append(f"{tail}: {counts.sum()} training images, {counts.min()} to {counts.max()} per class")
        facts.append(f"per class, in order of appearance: {' '.join(map(str, counts.tolist()))}")
    for line in (*facts, *report.problems):
        print(line)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def imbalance(
    stream: Stream,
    order_seed: Annotated[
        int | None, typer.Option(help="Seed of the class order.", show_default="1993", callback=within(ORDER_SEED))
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Old images to keep: 2000 (in total), 20/class, all, none.", callback=a_budget)
    ] = None,
    data: DataPlace = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also plot it.", callback=usable)] = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the images of every class as JSON.")] = False,
) -> None:
    """Show the training images per class of each task, new ones against the memory, and their imbalance ratio."""
    from ..report.imbalance import imbalance_json, imbalance_table, plot_imbalance
    from ..streams.imbalance import task_images
    from ..streams.protocols import ORDER_SEED as STANDARD
    from ..streams.stream import make_stream

    seed = STANDARD if order_seed is None else order_seed
    loaded = make_stream(stream, data_dir=data, order_seed=seed, memory=memory)
    tasks = task_images(loaded)
    if out is not None:
        plot_imbalance(tasks, f"{stream}, memory {loaded.budget}", out)
    if json:
        print_json(imbalance_json(tasks))
    else:
        screen = console()
        screen.print(f"{stream}, memory {loaded.budget}", markup=False, soft_wrap=True)
        screen.print(imbalance_table(tasks))
        if out is not None:
            screen.print(f"plot: {out}", markup=False, soft_wrap=True)


@app.command()
def fetch(dataset: _Dataset, data: DataPlace = None, plugin: Plugin = None) -> None:
    """Download a dataset. Valid files are kept; partial downloads resume."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from ..data.datasets.fetch import fetch as download
    from ..data.datasets.place import data_directory

    screen = console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    bar = progress.add_task("downloading", total=None)

    def show(done: int, total: int | None) -> None:
        progress.start()  # Not before: a library that fetches by itself has bars of its own.
        progress.update(bar, completed=done, total=total)

    try:
        folder = download(dataset, data_directory(data), progress=show)
    finally:
        if progress.live.is_started:
            progress.stop()
    print(folder)
