"""Model card (README.md) and exemplar gallery of a model."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..data.decoding import png
from ..data.image_set import ImageSet
from ..files import write_bytes
from .model import Model

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
        for name, images, held_out, accuracy in zip(
            model.classes, usage.images, usage.held, usage.accuracy, strict=True
        ):
            percent = "–" if accuracy is None else f"{accuracy:.1f} %"
            lines.append(f"| {_cell(name)} | {images} | {held_out} | {percent} |")
        lines += ["", _calibration(model), ""]
        lines += [f"- {change.when}: {change.what} {', '.join(map(_cell, change.classes))}" for change in usage.changes]
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
    return f"Probabilities are {calibration.summary()}."


def _cell(name: str) -> str:
    """A name that may be anything, within a line of a table: as JSON has it, where it is not a plain word."""
    plain = all(letter.isalnum() or letter in " _-.," for letter in name)
    return (
        name if plain else json.dumps(name, ensure_ascii=False).replace("|", "\\|").replace("`", "'").replace("<", "‹")
    )


_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
small { font-weight: normal; opacity: .7; }
div { display: flex; flex-wrap: wrap; gap: .4rem; }
img { width: 6rem; height: 6rem; object-fit: cover; border-radius: .3rem; }
"""


def gallery(model: Model, title: str) -> str:
    """A heading for each class, and its exemplars below it."""
    memory = model.memory.images
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for label, name in enumerate(model.classes):
        exemplars = memory.subset(np.flatnonzero(memory.labels == label)) if memory else None
        count = len(exemplars) if exemplars else 0
        parts.append(f"<h2>{html.escape(name)} <small>{count} image{'' if count == 1 else 's'}</small></h2><div>")
        parts += (
            [f'<img alt="{html.escape(name)}" src="{picture}">' for picture in _pictures(exemplars)]
            if exemplars
            else []
        )
        parts.append("</div>")
    return "\n".join([*parts, "</body></html>", ""])


def _pictures(images: ImageSet) -> Iterator[str]:
    """What the net sees of each image, as an address that holds it."""
    for pixels in images.read().permute(0, 2, 3, 1).numpy():
        yield f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"
