"""A model as a program of ``torch.export``, which needs torch but nothing of drcil."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram, export, load, save

from ..errors import UserError, shortened
from ..models.model import Model
from .formats import Answer
from .graph import Classifier, answering, description, folded

ABOUT = "drcil.json"
"""The extra file with the description."""


def write(model: Model, path: Path) -> None:
    # By way of memory: torch wants files to end in .pt2, and users may want another name.
    content = io.BytesIO()
    with quiet():
        save(traced(model), content, extra_files={ABOUT: json.dumps(description(model))})
    path.write_bytes(content.getvalue())


def opened(path: Path) -> Answer:
    with quiet():
        return answering(load(io.BytesIO(path.read_bytes())).module())


def traced(model: Model) -> ExportedProgram:
    """The model's graph, for any number, height and width of images."""
    about = description(model)
    size, channels = about["image_size"], about["channels"]
    # Neither side is the other, nor the net's: none may be taken for a constant.
    example = torch.zeros(2, size + 3, size + 5, channels, dtype=torch.uint8)
    sizes = {place: Dim(name, min=1) for place, name in enumerate(("batch", "height", "width"))}
    try:
        with torch.no_grad():
            return export(Classifier(folded(model), about), (example,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # A net or a readout from outside can do anything.
        raise unfit(model, error) from error


def unfit(model: Model, error: Exception) -> UserError:
    """The error for a model that is more than one graph can say."""
    why = shortened(" ".join(str(error).split()) or type(error).__name__)
    return UserError(
        f"'{model.name}' cannot be exported: its net and its leading readout cannot be written as one graph: {why}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block what torch's own parts warn each other of is not heard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
