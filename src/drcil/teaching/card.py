"""The model card: what a model is, for people, in the form that Hugging Face reads."""

from __future__ import annotations

import json
from pathlib import Path

from ..disk import write_bytes
from ..models.model import Model

CARD = "README.md"


def write_card(model: Model, directory: Path) -> None:
    """Put the card of a model beside it."""
    write_bytes(directory / CARD, card(model).encode())


def card(model: Model) -> str:
    """Front matter and text. Everything in it is in ``state.json`` too."""
    usage = model.usage
    lines = [
        "---",
        "library_name: drcil",
        "pipeline_tag: image-classification",
        "license: other",
        "tags:",
        "- class-incremental-learning",
        "---",
        "",
        f"# An image classifier of {len(model.classes)} classes",
        "",
        f"Method `{model.name}`, backbone `{model.method.architecture.backbone}`, images of {model.shape.size} pixels, "
        f"memory {model.memory.budget}, {model.method.parameters():,} parameters.",
        "",
    ]
    if usage is not None:
        lines += ["| class | images | held out | accuracy on those |", "|---|---:|---:|---:|"]
        for name, images, held, accuracy in zip(model.classes, usage.images, usage.held, usage.accuracy, strict=True):
            shown = "–" if accuracy is None else f"{accuracy:.1f} %"
            lines.append(f"| {_cell(name)} | {images} | {held} | {shown} |")
        lines += ["", _calibration(model), ""]
        lines += [f"- {one.when}: {one.what} {', '.join(map(_cell, one.classes))}" for one in usage.changes]
    lines += [
        "",
        "```python",
        "import drcil",
        "",
        'predictor = drcil.load_predictor("PATH")',
        'print(predictor.predict("image.jpg", top=3))',
        "```",
        "",
    ]
    return "\n".join(lines)


def _calibration(model: Model) -> str:
    calibration = model.usage.calibration if model.usage else None
    if calibration is None:
        return "Probabilities are not calibrated: no images were held out."
    return f"Probabilities are {calibration.told()}."


def _cell(name: str) -> str:
    """A name that may be anything, within a line of a table: as JSON has it, where it is not a plain word."""
    plain = all(letter.isalnum() or letter in " _-.," for letter in name)
    return (
        name if plain else json.dumps(name, ensure_ascii=False).replace("|", "\\|").replace("`", "'").replace("<", "‹")
    )
