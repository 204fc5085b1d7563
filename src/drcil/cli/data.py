"""drcil data: check or download a dataset, show the class imbalance of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import RunSettings
from .console import console, print_json
from .options import PlainJson, Plugin, Stream, takes, usable

app = typer.Typer(help="Check or fetch datasets; see how uneven a stream is.")

_Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="See 'drcil list datasets'.")]


def _directory(values: dict[str, Any]) -> Path | None:
    return Path(values["data"]) if "data" in values else None


@app.command()
@takes(RunSettings, only=("data",), panels=False)
def check(values: dict[str, Any], dataset: _Dataset, plugin: Plugin = None) -> None:
    """Verify a dataset: checksums, sizes and every file on disk. Exit code 1 if something is damaged.

    Of a long-tailed one, such as cifar100-lt-shuffled, the training images of each class are printed, too.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..data.dataset import check_dataset
    from ..streams.protocols import split_tail
    from ..streams.stream import make_stream

    name, tail = split_tail(dataset)
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("decoding", total=None, visible=False)
        report = check_dataset(
            name,
            _directory(values),
            lambda done, total: progress.update(bar, completed=done, total=total, visible=True),
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
@takes(RunSettings, only=("order_seed", "memory", "data"), panels=False)
def imbalance(
    values: dict[str, Any],
    stream: Stream,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also plot it.", callback=usable)] = None,
    plugin: Plugin = None,
    json: PlainJson = False,
) -> None:
    """Show the training images per class of each task, new ones against the memory, and their imbalance ratio."""
    from ..experiments.plots import imbalance_json, imbalance_table, plot_imbalance
    from ..runs.plan import load_stream
    from ..streams.stream import task_images

    settings = RunSettings.parse({**values, "method": "finetune", "stream": stream}, flags=True)
    loaded = load_stream(settings)
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
@takes(RunSettings, only=("data",), panels=False)
def fetch(values: dict[str, Any], dataset: _Dataset, plugin: Plugin = None) -> None:
    """Download a dataset. Valid files are kept."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from ..data.download import fetch as download
    from ..settings import data_directory

    screen = console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    bar = progress.add_task("downloading", total=None)

    def show(done: int, total: int | None) -> None:
        progress.start()  # Not earlier: libraries that download by themselves have their own progress bars.
        progress.update(bar, completed=done, total=total)

    try:
        folder = download(dataset, data_directory(_directory(values)), progress=show)
    finally:
        if progress.live.is_started:
            progress.stop()
    print(folder)
