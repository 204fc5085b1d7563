"""drcil info: describes a model and its classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import RunSettings
from .console import console, flush_output, print_json
from .options import ModelPath, PlainJson, Plugin, takes, usable

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.model import Model
    from ..models.usage import Calibration

_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)


@takes(RunSettings, only=("data",), panels=False)
def info(
    values: dict[str, Any],
    model: ModelPath,
    gallery: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write a page with the images it remembers.", callback=usable),
    ] = None,
    plugin: Plugin = None,
    json: PlainJson = False,
) -> None:
    """Show what a model is: its classes, where they come from, and how far it can be trusted."""
    from ..files import write_bytes
    from ..models.model_card import gallery as page
    from ..models.model_directory import read_model

    stored = read_model(model, Path(values["data"]) if "data" in values else None)
    if gallery is not None:
        write_bytes(gallery.absolute(), page(stored, str(model)).encode())
    if json:
        print_json(_as_json(model, stored) | ({"gallery": str(gallery)} if gallery else {}))
    else:
        screen = console()
        for line in _lines(model, stored):
            screen.print(line, markup=False, soft_wrap=True)
        screen.print(_table(stored))
        if stored.calibration is not None:
            screen.print(_thresholds(stored.calibration))
        for change in stored.usage.changes if stored.usage else ():
            names = ", ".join(change.classes)
            screen.print(f"{change.when}  {change.what} {names}", markup=False, soft_wrap=True)
        if gallery is not None:
            content = "the images it remembers" if stored.memory.images else "no images: the model remembers none"
            screen.print(f"written to {gallery}: {content}", markup=False, soft_wrap=True)
    flush_output()


def _lines(path: Path, model: Model) -> list[str]:
    architecture = model.method.architecture
    lines = [
        f"{path}: {model.name}, {len(model.classes)} classes in {len(model.sizes)} "
        f"task{'' if len(model.sizes) == 1 else 's'}",
        f"{architecture.backbone}, {model.method.parameters():,} parameters, "
        f"images of {model.shape} (channels, height, width), memory {model.memory.budget}",
    ]
    calibration = model.usage.calibration if model.usage else None
    if calibration is None:
        return [*lines, "not calibrated: no images were held out"]
    return [*lines, calibration.summary()]


def _rows(model: Model) -> list[dict[str, Any]]:
    """Images and accuracy of each class."""
    remembered = model.memory.images.counts(len(model.classes)).tolist() if model.memory.images else None
    usage = model.usage
    return [
        {
            "class": name,
            "images": usage.images[label] if usage else None,
            "exemplars": remembered[label] if remembered else 0,
            "held_out": usage.held[label] if usage else None,
            "accuracy": usage.accuracy[label] if usage else None,
        }
        for label, name in enumerate(model.classes)
    ]


def _table(model: Model) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    table.add_column("class", overflow="fold")
    for name in ("images", "exemplars", "held out", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(model):
        accuracy = "–" if row["accuracy"] is None else f"{row['accuracy']:.1f} %"
        counts = ("–" if row[name] is None else str(row[name]) for name in ("images", "exemplars", "held_out"))
        table.add_row(Text(row["class"]), *counts, accuracy)
    return table


def _thresholds(calibration: Calibration) -> Table:
    """The effect of 'drcil predict --threshold' on images of known classes."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in ("threshold", "unknown", "accuracy of the rest"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _threshold_rows(calibration):
        right = "–" if row["accuracy"] is None else f"{row['accuracy']:.1f} %"
        table.add_row(f"{row['threshold']:.1f}", f"{100 * row['rejected']:.1f} %", right)
    return table


def _threshold_rows(calibration: Calibration) -> list[dict[str, Any]]:
    return [
        {
            "threshold": threshold,
            "rejected": calibration.rejected(threshold),
            "accuracy": calibration.accuracy(threshold),
        }
        for threshold in _THRESHOLDS
    ]


def _as_json(path: Path, model: Model) -> dict[str, Any]:
    usage = model.usage.model_dump(mode="json", exclude={"calibration": {"below", "right"}}) if model.usage else {}
    return {
        "model": str(path),
        "method": model.name,
        "backbone": model.method.architecture.backbone,
        "parameters": model.method.parameters(),
        "image_size": model.shape.size,
        "channels": model.shape.channels,
        "memory": str(model.memory.budget),
        "tasks": list(model.sizes),
        "classes": _rows(model),
        "calibration": usage.get("calibration"),
        "thresholds": _threshold_rows(model.calibration) if model.calibration else [],
        "changes": usage.get("changes", []),
    }
