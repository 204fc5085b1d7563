"""The model format: a directory with weights, exemplars, and one JSON that says how to build what they fill.

The directory of a run's finished task is a model too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import Tensor

from ..arguments import path as checked_path
from ..data.sources.description import Description, parse_description
from ..data.sources.filelist import directory_names
from ..data.sources.imageset import ImageSet, Source
from ..disk import put_back, read_tensors, write_directory, write_tensors
from ..errors import UserError
from ..heads.base import HEADS
from ..methods import METHODS, Method, MethodState
from ..methods.parts import PARTS, NearestMean
from ..methods.spec import entries_of
from ..nets.description import ExpandedForm, NetForm, TaskNetForm
from ..nets.features import BACKBONES
from ..nets.net import Net
from ..plugins import needed_plugins, require_plugins
from ..reading import is_file
from ..seals import Seal
from ..streams.budget import Budget
from ..streams.memory import KeptImages, Memory
from ..validation import explain
from .exemplars import EXEMPLARS, recalled, stored
from .model import Model
from .state import (
    FORMAT,
    HELD,
    MEMORY,
    STATE,
    TASKS,
    WEIGHTS,
    MemoryState,
    ModelState,
    misfit,
    parse_state,
    write_state,
)
from .versions import current_version, is_versioned, read_current

T = TypeVar("T")

_FILES = {STATE, WEIGHTS, MEMORY, HELD, EXEMPLARS}


def save_model(model: Model, path: str | Path, carry: bool = False) -> None:
    """Write a model directory. A model that is already there is replaced; anything else is left alone.

    ``carry``: with copies of the files that its exemplars are.
    """
    place = checked_path("the path of a model", path).absolute()
    put_back(place)
    if os.path.lexists(place):
        strange = [place.name] if not os.path.isdir(place) else sorted(set(os.listdir(place)) - _FILES)
        if strange:
            raise UserError(f"{place} exists and is not a model: it contains '{strange[0]}'; choose another path")
    write_directory(place, lambda directory: write_model(model, directory, carry=carry))


def write_model(
    model: Model,
    directory: Path,
    extra: Mapping[str, Any] | None = None,
    more: Mapping[str, Mapping[str, Tensor]] | None = None,
    carry: bool = False,
) -> None:
    """Write the model's files into a directory.

    ``extra`` goes into the JSON beside the model's own entries; ``more`` are tensors to keep in further files, by the
    name of the file. ``carry``: exemplars in files are copied, too.
    """
    learnt = model.method.state()
    tensors: dict[str, Mapping[str, Tensor]] = {WEIGHTS: learnt.tensors, **(more or {})}
    sources: dict[str, dict[str, Any] | None] = {MEMORY: None, HELD: None}
    for name, images in ((MEMORY, model.memory.images), (HELD, model.held.images)):
        if images:
            sources[name], tensors[name] = stored(images, directory, carry)
    files = {name: write_tensors(directory / name, content) for name, content in tensors.items()}
    try:
        state = _state(model, learnt, sources, files)
    except ValidationError as error:
        raise UserError(f"the model cannot be saved: {explain(error)}") from None
    write_state(directory, state, extra or {})


def _state(
    model: Model, learnt: MethodState, sources: Mapping[str, dict[str, Any] | None], files: dict[str, Seal]
) -> ModelState:
    held = sources[HELD]
    return ModelState(
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
        memory=MemoryState.model_validate({"budget": str(model.memory.budget), "source": sources[MEMORY]}),
        held=None if held is None else parse_description(held),
        usage=model.usage,
        seed=model.seed,
        plugins=_plugins(model, learnt.description),
        files=files,
    )


def read_model(path: str | Path, data_dir: Path | None = None, at_hand: Source | None = None) -> Model:
    """A model as it was saved. Its exemplars are looked up when they are first asked for: predicting needs none.

    Those of the source ``at_hand`` are taken from there, others found again in the data directory.
    """
    place = checked_path("the path of a model", path)
    return at_model(place, lambda directory: _read_model(directory, data_dir, at_hand))


def _read_model(directory: Path, data_dir: Path | None, at_hand: Source | None) -> Model:
    state = parse_state(directory)
    require_plugins(state.plugins, directory)
    spec = METHODS[state.method]
    BACKBONES[state.architecture.backbone]
    try:
        settings = spec.build.Settings.model_validate(state.settings)
    except ValidationError as error:
        raise misfit(directory, error) from None
    method = spec.build(settings, state.architecture)
    tensors = read_beside(directory, state, WEIGHTS)
    parts = {name: part.model_dump(mode="json") for name, part in state.parts.items()}
    recall = partial(_recalled, directory, state, at_hand, data_dir)
    try:
        _require_room(state, tensors)
        method.restore(MethodState(tensors, parts))
        model = Model(
            name=state.method,
            method=method,
            data=state.data,
            shape=state.images,
            memory=Memory(Budget.parse(state.memory.budget), partial(recall, state.memory.source, MEMORY)),
            held=KeptImages(partial(recall, state.held, HELD)),
            usage=state.usage,
            augment=state.augment,
            seed=state.seed,
            readout=state.readouts[0],
            sizes=state.tasks,
            classes=state.classes,
        )
        _require_fit(state, method)
    except Exception as error:  # building from a description can fail in any way
        why = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{directory / WEIGHTS} does not fit the model that {STATE} describes: {why}") from error
    if tuple(model.readouts()) != state.readouts:
        raise UserError(f"{directory / STATE} names other readouts than '{state.method}' has")
    return model


def model_at(path: Path) -> Path:
    """The model directory that a path means: itself, its current version, or the last finished task of a run."""
    if is_versioned(path):
        return current_version(path)
    if not is_file(path / STATE) and os.path.isdir(path / TASKS):
        finished = [name for name in directory_names(path / TASKS) if is_file(path / TASKS / name / STATE)]
        return path / TASKS / max(finished, key=lambda name: (len(name), name)) if finished else path
    return path


def at_model(path: Path, read: Callable[[Path], T]) -> T:
    """What ``read`` reads of the model directory that a path means, also while the model changes."""
    return read_current(path, read) if is_versioned(path) else read(model_at(path))


def read_beside(directory: Path, state: ModelState, name: str) -> dict[str, Tensor]:
    """The tensors of a file beside ``state.json``, if it is as it was written."""
    if name not in state.files:
        raise UserError(f"{directory / STATE} does not describe a model with a file {name}: 'files' has none")
    return read_tensors(directory / name, state.files[name])[0]


def _require_room(state: ModelState, tensors: dict[str, Tensor]) -> None:
    """A description of more than the weights can fill would take long to follow, only to be found wrong."""
    numbers = sum(tensor.numel() for tensor in tensors.values())
    for name, part in state.parts.items():
        if isinstance(part, ExpandedForm) and len(part.backbone.members) > len(tensors):
            raise UserError(
                f"'{name}' has {len(part.backbone.members)} backbones, but there are {len(tensors)} tensors"
            )
        if isinstance(part, TaskNetForm) or (
            isinstance(part, ExpandedForm | NetForm) and HEADS.origin(part.head.name) is None
        ):
            needed = sum(max(1, size) for size in part.head.tasks) * part.head.channels
            if needed > numbers:
                raise UserError(f"the head of '{name}' takes {needed} numbers, but there are {numbers}")


def _require_fit(state: ModelState, method: Method) -> None:
    """Every readout must rank the classes, from images of the model's channels."""
    known = method.readouts()
    if state.readouts[0] not in known:
        raise UserError(f"it has no readout '{state.readouts[0]}'")
    classes = len(state.classes)
    for name, readout in known.items():
        if isinstance(readout.net, Net) and readout.net.head.classes != classes:
            raise UserError(f"readout '{name}' ranks {readout.net.head.classes} classes, but there are {classes}")
        if isinstance(readout.scores, NearestMean) and len(readout.scores.means) != classes:
            raise UserError(f"readout '{name}' has {len(readout.scores.means)} means, but there are {classes} classes")


def _plugins(model: Model, parts: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The plugins that the method, its backbone, its parts and their heads come from."""
    heads = [part["head"]["name"] for part in parts.values() if "name" in part.get("head", ())]
    return needed_plugins(
        *entries_of(model.name),
        (BACKBONES, model.method.architecture.backbone),
        *((PARTS, part["part"]) for part in parts.values()),
        *((HEADS, head) for head in heads),
    )


def _recalled(
    directory: Path,
    state: ModelState,
    at_hand: Source | None,
    data_dir: Path | None,
    where: Description | None,
    file: str,
) -> ImageSet | None:
    """Saved exemplars, or images that were held out."""
    if where is None:
        return None
    tensors = read_beside(directory, state, file)
    try:
        return recalled(tensors, where, state.images, len(state.classes), at_hand, data_dir, directory)
    except UserError as error:
        what = "exemplars" if file == MEMORY else "held-out images"
        raise UserError(f"the {what} of {directory} cannot be used: {error}") from error
