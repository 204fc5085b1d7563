"""``state.json``: what a model directory says of itself, as one validated object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..data.datasets.dataset import DataSpec
from ..data.sources.imageset import ImageShape
from ..disk import put_back
from ..errors import UserError
from ..methods import Architecture
from ..reading import read_json
from ..validation import explain

FORMAT = 2
STATE = "state.json"


class MemoryState(BaseModel):
    """The budget, and where the exemplars are found; None: there are none."""

    budget: str
    source: dict[str, Any] | None


class ModelState(BaseModel):
    """What ``state.json`` says. A run adds ``task`` and ``run``, which a model does without."""

    format: int
    method: str
    settings: dict[str, Any]
    architecture: Architecture
    parts: dict[str, dict[str, Any]]
    """How to build what the weights fill."""
    tasks: tuple[int, ...]
    """The number of classes that each task brought."""
    classes: tuple[str, ...]
    images: ImageShape
    data: DataSpec
    augment: str | None
    readouts: tuple[str, ...]
    """The leading one first."""
    memory: MemoryState
    seed: int
    plugins: tuple[str, ...] = ()
    """The code that is needed to build it and is not drcil's own: modules, and files by their absolute path."""


def read_state(directory: Path) -> dict[str, Any]:
    """The JSON of a model, checked for its format version."""
    put_back(directory.absolute())
    if not (directory / STATE).is_file():
        raise UserError(f"{directory} is not a model: it has no {STATE}")
    state = read_json(directory / STATE)
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise UserError(f"{directory} has model format {found}; this version of drcil reads format {FORMAT}")
    return dict(state)


def parse_state(directory: Path) -> ModelState:
    """The same as `read_state`, typed."""
    values = read_state(directory)
    try:
        return ModelState.model_validate(values)
    except ValidationError as error:
        raise misfit(directory, error) from None


def misfit(directory: Path, error: ValidationError) -> UserError:
    return UserError(f"{directory / STATE} does not describe a model: {explain(error)}")
