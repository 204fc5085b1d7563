"""The weights that a new model starts from, wherever they are: a file, a model, a run, or what is published."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..arguments import path as given_path
from ..nets.pretrained import named_weights
from ..nets.weights import Weights
from ..reading import is_file
from .directory import model_at
from .state import STATE, WEIGHTS, parse_state


def starting_weights(file: str | os.PathLike[str] | None, pretrained: bool, backbone: str | None) -> Weights | None:
    """The weights that a user asks for; of those of a model it is known how its images were normalised."""
    if file is not None:
        place = given_path("the path of weights", file).expanduser()
        file = model_at(place) if os.path.isdir(place) else place
    weights = named_weights(file, pretrained, backbone)
    if weights is None or Path(weights.file).name != WEIGHTS or not is_file(Path(weights.file).with_name(STATE)):
        return weights
    data = parse_state(Path(weights.file).parent).data
    return replace(weights, mean=data.mean, std=data.std)
