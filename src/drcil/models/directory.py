"""The model format: a directory with weights, exemplars, and one JSON that says how to build what they fill.

The directory of a run's finished task is a model too.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from ..data.datasets.load import find_source
from ..data.sources.imageset import ArraySource, ChainSource, ImageSet, Source, copied
from ..disk import put_back, read_tensors, write_directory, write_json, write_tensors
from ..errors import UserError
from ..heads.base import HEADS
from ..methods import METHODS, Method, MethodState
from ..methods.parts import PARTS
from ..nets.features import BACKBONES
from ..plugins import needed_plugins, require_plugins
from ..streams.budget import Budget
from ..streams.memory import Memory, exemplars
from .model import Model
from .state import FORMAT, STATE, MemoryState, ModelState, misfit, parse_state

WEIGHTS, MEMORY = "method.safetensors", "memory.safetensors"
_FILES = {STATE, WEIGHTS, MEMORY}


def save_model(model: Model, path: Path) -> None:
    """Write a model directory. A model that is already there is replaced; anything else is left alone."""
    path = path.absolute()
    put_back(path)
    if path.exists():
        strange = [path.name] if not path.is_dir() else sorted({file.name for file in path.iterdir()} - _FILES)
        if strange:
            raise UserError(f"{path} exists and is not a model: it contains '{strange[0]}'; choose another path")
    write_directory(path, lambda directory: write_model(model, directory))


def write_model(model: Model, directory: Path, extra: dict[str, Any] | None = None) -> None:
    """Write the model's files into a directory; ``extra`` goes into the JSON beside the model's own entries."""
    learnt = model.method.state()
    write_tensors(directory / WEIGHTS, learnt.tensors)
    source: dict[str, Any] | None = None
    if model.memory.images:
        source, kept = _stored(model.memory.images)
        write_tensors(directory / MEMORY, kept)
    state = ModelState(
        format=FORMAT,
        method=model.name,
        settings=model.method.settings.model_dump(mode="json"),
        architecture=model.method.architecture,
        parts=learnt.description,
        tasks=model.sizes,
        classes=model.classes,
        images=model.shape,
        data=model.data,
        augment=model.augment,
        readouts=tuple(model.readouts()),
        memory=MemoryState(budget=str(model.memory.budget), source=source),
        seed=model.seed,
        plugins=_plugins(model, learnt.description),
    )
    write_json(directory / STATE, {**state.model_dump(mode="json"), **(extra or {})})


def read_model(path: str | Path, data_dir: Path | None = None, at_hand: Source | None = None) -> Model:
    """A model as it was saved. Its exemplars are looked up when they are first asked for: predicting needs none.

    Those of the source ``at_hand`` are taken from there, others found again in the data directory.
    """
    directory = Path(path)
    state = parse_state(directory)
    require_plugins(state.plugins, directory)
    spec = METHODS[state.method]
    try:
        settings = spec.build.Settings.model_validate(state.settings)
    except ValidationError as error:
        raise misfit(directory, error) from None
    method = spec.build(settings, state.architecture)
    tensors, _ = read_tensors(directory / WEIGHTS)
    try:
        method.restore(MethodState(tensors, state.parts))
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{directory / WEIGHTS} does not fit the model that {STATE} describes: {error}") from error
    return Model(
        name=state.method,
        method=method,
        data=state.data,
        shape=state.images,
        memory=Memory(Budget.parse(state.memory.budget), partial(_recalled, directory, state, at_hand, data_dir)),
        augment=state.augment,
        seed=state.seed,
        readout=_leading(directory, state, method),
        sizes=state.tasks,
        classes=state.classes,
    )


def _leading(directory: Path, state: ModelState, method: Method) -> str | None:
    """The readout that was saved as the leading one."""
    if not state.readouts or state.readouts[0] not in method.readouts():
        raise UserError(f"{directory / STATE} names readouts that '{state.method}' does not have")
    return state.readouts[0]


def _plugins(model: Model, parts: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The plugins that the method, its backbone, its parts and their heads come from."""
    heads = [part["head"]["name"] for part in parts.values() if "name" in part.get("head", ())]
    return needed_plugins(
        (METHODS, model.name),
        (BACKBONES, model.method.architecture.backbone),
        *((PARTS, part["part"]) for part in parts.values()),
        *((HEADS, head) for head in heads),
    )


def _recalled(directory: Path, state: ModelState, at_hand: Source | None, data_dir: Path | None) -> ImageSet | None:
    """Saved exemplars. Rows of those kept as pixels count in these pixels, whatever is at hand."""
    where = state.memory.source
    if where is None:
        return None
    tensors, _ = read_tensors(directory / MEMORY)
    try:
        rows, labels = (tensors[name].numpy().astype(np.int64) for name in ("rows", "labels"))
        kept = "pixels" in tensors
        source = at_hand if at_hand and not kept and at_hand.describe() == where else _found(where, tensors, data_dir)
    except KeyError as error:
        raise UserError(
            f"{directory / MEMORY} does not fit what {STATE} says of the memory: {error} is missing"
        ) from None
    return exemplars(source, rows, labels)


def _stored(images: ImageSet) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Where exemplars will be found again; rows and labels, and the pixels of those that are found nowhere else."""
    kept = copied(images, lambda source: source.embedded)
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
