"""``drcil evaluate``: how well a model does on the test images of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..limits import ORDER_SEED, THREADS
from .checks import known_device, usable, within
from .options import DataPlace, Plugin
from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from rich.table import Table

    from ..runs.evaluate import Evaluation


def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model directory, or a run: its last task.", callback=usable)
    ],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream whose first tasks it has learnt.")],
    data: DataPlace = None,
    readout: Annotated[
        str | None, typer.Option(help="Readout to evaluate.", show_default="the run's, else the first")
    ] = None,
    order_seed: Annotated[
        int | None,
        typer.Option(help="Seed of the class order.", show_default="the run's, else 1993", callback=within(ORDER_SEED)),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.", callback=known_device)] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="all cores", callback=within(THREADS))
    ] = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure a model on the test images of the tasks it has learnt."""
    from dataclasses import asdict

    from ..process import configure
    from ..runs.evaluate import evaluate as measure

    configure(threads)
    found = measure(model, stream, data_dir=data, order_seed=order_seed, readout=readout, device=device)
    if json:
        print_json(asdict(found))
    else:
        screen = console()
        screen.print(f"{found.model} on {found.stream}, readout {found.readout}", markup=False, soft_wrap=True)
        screen.print(_table(found))
    require_printed()


def _table(found: Evaluation) -> Table:
    """A row per task, and one for all their test images."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in ("task", "accuracy", "correct", "top 5"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, accuracy in enumerate(found.per_task, start=1):
        table.add_row(str(number), f"{accuracy:.2f}")
    table.add_section()
    table.add_row("all", f"{found.accuracy:.2f}", f"{found.correct} of {found.total}", f"{found.top5:.2f}")
    return table
