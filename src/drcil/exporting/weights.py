"""The folded weights of a model with a description, for those who have drcil: small, and nothing in it is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..arguments import path as given_path
from ..disk import read_tensors, write_tensors
from ..errors import UserError
from ..keys import randomness
from ..methods import METHODS, Architecture
from ..methods.parts import PARTS
from ..models.model import Model
from .formats import Answer
from .graph import Classifier, answering, description, folded, frozen

_NEEDED = (
    *("method", "settings", "backbone", "parts", "readout"),
    *("image_size", "channels", "mean", "std", "temperature"),
)


def write(model: Model, path: Path) -> None:
    method = model.method
    note = description(model) | {
        "settings": method.settings.model_dump(mode="json"),
        "backbone": method.architecture.backbone,
        "parts": method.state().description,
    }
    write_tensors(path, Classifier(folded(model), note).state_dict(), note)


def opened(path: Path) -> Answer:
    return answering(rebuilt(path))


def rebuilt(path: str | Path) -> Classifier:
    """The net of a file that was exported as safetensors: a module, uint8 images in, probabilities out."""
    place = given_path("the path of an exported file", path)
    tensors, note = read_tensors(place)
    missing = [name for name in _NEEDED if name not in note]
    if missing:
        raise UserError(f"{place} is no model that was exported: it does not say its '{missing[0]}'")
    try:
        return _filled(tensors, note)
    except Exception as error:  # Building from a description can fail in any way.
        why = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{place} does not fit what it says of itself: {why}") from error


def _filled(tensors: dict[str, Tensor], note: Mapping[str, Any]) -> Classifier:
    """What the note describes, folded as it was for writing, with these tensors."""
    spec = METHODS[note["method"]]
    settings = spec.build.Settings.model_validate(note["settings"])
    method = spec.build(settings, Architecture(note["backbone"], note["channels"], note["image_size"]))
    # Building draws initial weights, only to overwrite them.
    with randomness("overwritten"):
        method.parts = {name: PARTS[part["part"]](part) for name, part in note["parts"].items()}
    classifier = Classifier(frozen(method.readouts(), note["readout"]), note)
    classifier.load_state_dict(tensors)
    return classifier
