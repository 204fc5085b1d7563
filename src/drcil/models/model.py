"""The model format: a directory with weights, exemplars, and one JSON that says how to build what they fill.

The directory of a run's finished task is a model too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from ..data.datasets.dataset import DataSpec
from ..data.datasets.load import find_source
from ..data.sources.imageset import ArraySource, ChainSource, ImageSet, ImageShape, Source, copied
from ..disk import put_back, read_json, read_tensors, write_directory, write_json, write_tensors
from ..errors import UserError
from ..learner import Learner
from ..methods import METHODS, Architecture, MethodState
from ..streams.budget import Budget
from ..streams.memory import Memory
from ..validation import explain

FORMAT = 1
STATE, WEIGHTS, MEMORY = "state.json", "method.safetensors", "memory.safetensors"
_FILES = {STATE, WEIGHTS, MEMORY}


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
    memory: MemoryState
    seed: int


def save_model(learner: Learner, path: Path) -> None:
    """Write a model directory. A model that is already there is replaced; anything else is left alone."""
    path = path.absolute()
    put_back(path)
    if path.exists():
        strange = [path.name] if not path.is_dir() else sorted({file.name for file in path.iterdir()} - _FILES)
        if strange:
            raise UserError(
                f"{path} is not a model that could be replaced: there is '{strange[0]}'; choose another place"
            )
    write_directory(path, lambda directory: write_model(learner, directory))


def write_model(learner: Learner, directory: Path, extra: dict[str, Any] | None = None) -> None:
    """Write the model's files into a directory; ``extra`` goes into the JSON beside the model's own entries."""
    method = learner.method.state()
    write_tensors(directory / WEIGHTS, method.tensors)
    source: dict[str, Any] | None = None
    if learner.memory.images:
        source, exemplars = _stored(learner.memory.images)
        write_tensors(directory / MEMORY, exemplars)
    state = ModelState(
        format=FORMAT,
        method=learner.options.method,
        settings=learner.method.settings.model_dump(mode="json"),
        architecture=learner.method.architecture,
        parts=method.description,
        tasks=learner.sizes,
        classes=learner.classes,
        images=learner.shape,
        data=learner.spec,
        augment=learner.options.augment,
        readouts=tuple(learner.readouts()),
        memory=MemoryState(budget=str(learner.memory.budget), source=source),
        seed=learner.options.seed,
    )
    write_json(directory / STATE, {**state.model_dump(mode="json"), **(extra or {})})


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


def load_model(path: str | Path, data_dir: Path | None = None, **engine: Any) -> Learner:
    """A learner as it was saved. It predicts at once; to learn on, data its memory refers to must be at hand."""
    directory = Path(path)
    state = parse_state(directory)
    learner = Learner(
        state.method,
        backbone=state.architecture.backbone,
        memory=state.memory.budget,
        augment=state.augment,
        seed=state.seed,
        **engine,
    )
    try:
        settings = METHODS[state.method].build.Settings.model_validate(state.settings)
    except ValidationError as error:
        raise _misfit(directory, error) from None
    learner.start(state.data, state.images, Budget.parse(state.memory.budget), settings)
    fill(learner, directory, state)
    learner.recall_by(lambda memory: fill_memory(memory, directory, state, data_dir=data_dir))
    return learner


def parse_state(directory: Path) -> ModelState:
    """The same as `read_state`, typed."""
    values = read_state(directory)
    try:
        return ModelState.model_validate(values)
    except ValidationError as error:
        raise _misfit(directory, error) from None


def fill(learner: Learner, directory: Path, state: ModelState) -> None:
    """Put a saved model's weights and position into a learner that was made for it."""
    tensors, _ = read_tensors(directory / WEIGHTS)
    try:
        learner.method.restore(MethodState(tensors, state.parts))
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{directory / WEIGHTS} does not fit the model that {STATE} describes: {error}") from error
    learner.sizes, learner.classes = state.tasks, state.classes


def fill_memory(
    memory: Memory, directory: Path, state: ModelState, at_hand: Source | None = None, data_dir: Path | None = None
) -> None:
    """Put saved exemplars into a memory; those of the source ``at_hand`` are taken from there.

    Rows of exemplars that were kept as pixels count in those pixels, whatever is at hand.
    """
    where = state.memory.source
    if where is None:
        return
    tensors, _ = read_tensors(directory / MEMORY)
    try:
        rows, labels = (tensors[name].numpy().astype(np.int64) for name in ("rows", "labels"))
        kept = "pixels" in tensors
        source = at_hand if at_hand and not kept and at_hand.describe() == where else _found(where, tensors, data_dir)
    except KeyError as error:
        raise UserError(
            f"{directory / MEMORY} does not fit what {STATE} says of the memory: {error} is missing"
        ) from None
    memory.restore(source, rows, labels)


def _stored(exemplars: ImageSet) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Where exemplars will be found again; rows and labels, and the pixels of those that are found nowhere else."""
    kept = copied(exemplars, lambda source: source.embedded)
    tensors = {"rows": torch.from_numpy(kept.rows), "labels": torch.from_numpy(kept.labels)}
    parts = kept.source.parts if isinstance(kept.source, ChainSource) else (kept.source,)
    for part in parts:
        if isinstance(part, ArraySource) and part.embedded:
            tensors["pixels"] = part.pixels
    return kept.source.describe(), tensors


def _found(where: dict[str, Any], tensors: dict[str, Tensor], data_dir: Path | None) -> Source:
    """The source that ``_stored`` told of."""
    if where["kind"] == "embedded":
        return ArraySource(tensors["pixels"])
    if where["kind"] == "chain":
        return ChainSource([_found(part, tensors, data_dir) for part in where["parts"]])
    return find_source(where, data_dir)


def _misfit(directory: Path, error: ValidationError) -> UserError:
    return UserError(f"{directory / STATE} does not describe a model: {explain(error)}")
