"""drcil export, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import RunSettings
from .console import console, flush_output, print_json
from .options import ModelPath, PlainJson, Plugin, takes, usable

if TYPE_CHECKING:
    from rich.table import Table

    from ..exporting.exporter import Exported, Speed


@takes(RunSettings, only=("data", "threads"), panels=False)
def export(
    values: dict[str, Any],
    model: ModelPath,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.", callback=usable)],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, torch (torch.export), safetensors.", show_default="by the ending of FILE"),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(metavar="int8", help="Weights and activations of eight bits, in ONNX.")
    ] = None,
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Also measure the speed of the file.")] = False,
    plugin: Plugin = None,
    json: PlainJson = False,
) -> None:
    """Write a model as one file: uint8 images of any size in, probabilities out.

    The file is compared with the model's own predictions before it gets its name.
    """
    from ..exporting.exporter import check_export

    check_export(out.absolute(), format, quantize)

    from ..exporting.exporter import export as export_model
    from ..exporting.exporter import measure_speed
    from ..models.model_directory import read_model
    from ..process import configure

    configure(values.get("threads"))
    loaded = read_model(model, Path(values["data"]) if "data" in values else None)
    exported = export_model(loaded, out, format, quantize)
    speeds = measure_speed(loaded, exported) if benchmark else []
    if json:
        print_json(_as_json(exported, speeds))
    else:
        screen = console()
        for line in _lines(exported):
            screen.print(line, markup=False, soft_wrap=True)
        if speeds:
            screen.print(_table(speeds))
    flush_output()


def _lines(exported: Exported) -> list[str]:
    synthetic = exported.images - exported.model_images
    images = f"{exported.model_images} images of the model and " if exported.model_images else ""
    lines = [
        f"{exported.file}: {exported.format}, {_megabytes(exported.size)} MB",
        f"largest difference from drcil's probabilities: {exported.difference:.1e} "
        f"({images}{synthetic} synthetic images)",
    ]
    if exported.agreement is not None:
        lines.append(
            f"int8, {_calibration(exported)}: the same best class for {100 * exported.agreement:.1f} %, largest "
            f"difference {exported.quantized_difference:.2g}"
        )
    return lines


def _calibration(exported: Exported) -> str:
    """How int8 was calibrated, and on which images it was compared."""
    if not exported.model_images:
        return f"dynamic, since the model has no images to calibrate with; on {exported.images} synthetic images"
    if exported.model_images == 1:
        return f"calibrated on the model's only image; on it and {exported.images - 1} synthetic ones"
    compared = exported.model_images // 2
    return f"calibrated on {exported.model_images - compared} images of the model; on {compared} others of them"


def _table(speeds: list[Speed]) -> Table:
    from rich import box
    from rich.table import Table

    from ..exporting.exporter import BATCH_SIZES

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    table.add_column("net")
    table.add_column("MB", justify="right", no_wrap=True)
    for size in BATCH_SIZES:
        table.add_column(f"ms for {size} image{'s' if size > 1 else ''}", justify="right", no_wrap=True)
    for speed in speeds:
        table.add_row(speed.form, _megabytes(speed.size), *(f"{time:.2f}" for time in speed.milliseconds))
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


def _as_json(exported: Exported, speeds: list[Speed]) -> dict[str, object]:
    from dataclasses import asdict

    from ..exporting.exporter import BATCH_SIZES

    forms = [
        {
            "net": speed.form,
            "bytes": speed.size,
            "milliseconds": dict(zip(map(str, BATCH_SIZES), speed.milliseconds, strict=True)),
        }
        for speed in speeds
    ]
    return {**asdict(exported), "file": str(exported.file), **({"speed": forms} if speeds else {})}


def import_checkpoints(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT", help="The authors' .pth.tar files.", callback=usable)
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="MODEL", help="The model directory; for several checkpoints, its parent.", callback=usable
        ),
    ],
    plugin: Plugin = None,
) -> None:
    """Import the DRC authors' published CIFAR-100 checkpoints as models.

    Of several, each becomes MODEL/taskNN, by the task it was written after.
    """
    from ..models.published_checkpoints import import_all

    for model in import_all(checkpoints, out):
        print(model)
