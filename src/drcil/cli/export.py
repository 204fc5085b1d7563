"""``drcil export``: a model as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..limits import THREADS
from .checks import usable, within
from .options import DataPlace, Plugin
from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from rich.table import Table

    from ..exporting.export import Exported
    from ..exporting.speed import Speed


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model directory, or a run: its last task.", callback=usable)
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.", callback=usable)],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, torch (torch.export), safetensors.", show_default="by the ending of FILE"),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(metavar="int8", help="Weights and activations of eight bits, in ONNX.")
    ] = None,
    data: DataPlace = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="all cores", callback=within(THREADS))
    ] = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write a model as one file: uint8 images of any size in, probabilities out.

    Before it is handed over, the file is compared with the model's own predictions.
    """
    from ..exporting.formats import require_possible

    require_possible(out.absolute(), format, quantize)

    from ..exporting.export import export_model
    from ..exporting.speed import speeds
    from ..models.directory import read_model
    from ..process import configure

    configure(threads)
    read = read_model(model, data)
    done = export_model(read, out, format, quantize)
    measured = speeds(read, done)
    if json:
        print_json(_as_json(done, measured))
    else:
        screen = console()
        for line in _lines(done):
            screen.print(line, markup=False, soft_wrap=True)
        screen.print(_table(measured))
    require_printed()


def _lines(done: Exported) -> list[str]:
    generated = done.images - done.own_images
    own = f"{done.own_images} images of the model and " if done.own_images else ""
    lines = [
        f"{done.file}: {done.format}, {_megabytes(done.size)} MB",
        f"largest difference from drcil's own probabilities: {done.difference:.1e}, on {own}{generated} generated ones",
    ]
    if done.agreement is not None:
        lines.append(
            f"int8, {_calibration(done)}: the same best class for {100 * done.agreement:.1f} %, largest difference "
            f"{done.quantized_difference:.2g}"
        )
    return lines


def _calibration(done: Exported) -> str:
    """How the ranges of eight bits were found, and which images tell what was lost."""
    if not done.own_images:
        return f"dynamic, as the model has no images to calibrate with; on {done.images} generated images"
    if done.own_images == 1:
        return f"calibrated on the model's only image; on it and {done.images - 1} generated ones"
    compared = done.own_images // 2
    return f"calibrated on {done.own_images - compared} images of the model; on {compared} others of them"


def _table(measured: list[Speed]) -> Table:
    from rich import box
    from rich.table import Table

    from ..exporting.speed import BATCHES

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    table.add_column("net")
    table.add_column("MB", justify="right", no_wrap=True)
    for batch in BATCHES:
        table.add_column(f"ms for {batch} image{'s' if batch > 1 else ''}", justify="right", no_wrap=True)
    for one in measured:
        table.add_row(one.form, _megabytes(one.size), *(f"{taken:.2f}" for taken in one.milliseconds))
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


def _as_json(done: Exported, measured: list[Speed]) -> dict[str, object]:
    from dataclasses import asdict

    from ..exporting.speed import BATCHES

    forms = [
        {
            "net": one.form,
            "bytes": one.size,
            "milliseconds": {str(batch): taken for batch, taken in zip(BATCHES, one.milliseconds, strict=True)},
        }
        for one in measured
    ]
    return {**asdict(done), "file": str(done.file), "speed": forms}
