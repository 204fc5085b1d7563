"""Export as .pt2 and .safetensors; loads the latter."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export, load, save

from ..errors import UserError, check_path, shortened
from ..files import read_tensors, write_tensors
from ..methods import METHODS, Architecture
from ..models.model import Model
from ..nets.parts import build_part
from .classifier import Classifier, Predict, describe, fold_readout, folded_readout, predict_arrays

ABOUT = "drcil.json"
"""The extra file with the description."""


def write_program(model: Model, path: Path) -> None:
    # Through memory: torch requires the suffix .pt2, and users may want another name.
    content = io.BytesIO()
    with no_warnings():
        save(trace(model), content, extra_files={ABOUT: json.dumps(describe(model))})
    path.write_bytes(content.getvalue())


def open_program(path: Path) -> Predict:
    with no_warnings():
        return predict_arrays(load(io.BytesIO(path.read_bytes())).module())


def trace(model: Model) -> ExportedProgram:
    """The graph of the model, for any number, height and width of images."""
    about = describe(model)
    size, channels = about["image_size"], about["channels"]
    # Height and width differ from each other and from the net's size, so that none becomes a constant.
    example = torch.zeros(2, size + 3, size + 5, channels, dtype=torch.uint8)
    sizes = {axis: Dim(name, min=1) for axis, name in enumerate(("batch", "height", "width"))}
    try:
        with torch.no_grad():
            return export(Classifier(folded_readout(model), about), (example,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # Nets and readouts of plugins can fail in any way.
        raise export_error(model, error) from error


def export_error(model: Model, error: Exception) -> UserError:
    """The error for a model that cannot be written as one graph."""
    reason = shortened(" ".join(str(error).split()) or type(error).__name__)
    return UserError(
        f"'{model.name}' cannot be exported: its net and its leading readout cannot be written as one graph: {reason}"
    )


@contextmanager
def no_warnings() -> Iterator[None]:
    """Hide warnings that torch raises about its own modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_REQUIRED = (
    *("method", "settings", "backbone", "parts", "readout"),
    *("image_size", "channels", "mean", "std", "temperature"),
)


def write_weights(model: Model, path: Path) -> None:
    method = model.method
    note = describe(model) | {
        "settings": method.settings.model_dump(mode="json"),
        "backbone": method.architecture.backbone,
        "parts": method.state().description,
    }
    write_tensors(path, Classifier(folded_readout(model), note).state_dict(), note)


def open_weights(path: Path) -> Predict:
    return predict_arrays(load_exported(path))


def load_exported(path: str | os.PathLike[str]) -> Classifier:
    """The net in a file exported as safetensors: a torch module, uint8 images (N, H, W, C) in, probabilities out."""
    path = check_path("the path of an exported file", path)
    tensors, note = read_tensors(path)
    missing = [name for name in _REQUIRED if name not in note]
    if missing:
        raise UserError(f"{path} is not an exported model: it has no entry '{missing[0]}'")
    try:
        return _rebuild(tensors, note)
    except Exception as error:  # Building from a description can fail in any way.
        reason = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path} does not fit its own description: {reason}") from error


def _rebuild(tensors: dict[str, Tensor], note: Mapping[str, Any]) -> Classifier:
    """The net that the note describes, folded as it was when it was written, with these tensors."""
    spec = METHODS[note["method"]]
    settings = spec.build.Settings.model_validate(note["settings"])
    method = spec.build(settings, Architecture(note["backbone"], note["channels"], note["image_size"]))
    method.parts = {name: build_part(part) for name, part in note["parts"].items()}
    classifier = Classifier(fold_readout(method.readouts(), note["readout"]), note)
    classifier.load_state_dict(tensors)
    return classifier
