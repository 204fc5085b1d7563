"""Reads and writes a model directory: weights, exemplars, held-out images.

The directory of a run's finished task is a model too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from torch import Tensor

from ..data.image_set import ImageSet, Int64, Source
from ..data.source_refs import SourceRef
from ..errors import UserError
from ..errors import check_path as checked_path
from ..files import atomic_directory, read_tensors, restore_replaced, verify_checksum, write_tensors
from ..heads.head import HEADS
from ..methods import METHODS, Method, MethodState
from ..methods.catalog import entries_of
from ..methods.nearest_mean import NearestMean
from ..nets.backbone import BACKBONES
from ..nets.net import Net
from ..nets.parts import PARTS
from ..registry import changed_plugin, needed_plugins, plugin_code, require_plugins
from ..settings import MemoryBudget, describe_validation_error
from ..streams.memory import KeptImages, Memory
from .exemplars import EXEMPLARS, load_exemplars, require_kept_picture, save_exemplars
from .model import Model
from .model_format import (
    DIGESTS,
    FORMAT,
    HELD,
    MEMORY,
    STATE,
    WEIGHTS,
    MemoryState,
    ModelState,
    exemplar_files,
    invalid_state,
    read_state,
    write_state,
)
from .store import is_versioned, model_at, read_current
from .usage import ImageDigests, UInt64

T = TypeVar("T")

_FILES = {STATE, WEIGHTS, MEMORY, HELD, DIGESTS, EXEMPLARS}


def save_model(model: Model, path: str | Path, copy_exemplars: bool = False) -> None:
    """Write a model directory. A model that is already there is replaced; anything else is left alone.

    ``copy_exemplars``: with copies of the files that its exemplars are.
    """
    target = checked_path("the path of a model", path).absolute()
    restore_replaced(target)
    if os.path.lexists(target):
        unexpected = [target.name] if not os.path.isdir(target) else sorted(set(os.listdir(target)) - _FILES)
        if unexpected:
            raise UserError(f"{target} exists and is not a model: it contains '{unexpected[0]}'; choose another path")
    with atomic_directory(target) as directory:
        write_model(model, directory, copy_exemplars=copy_exemplars)


def write_model(
    model: Model,
    directory: Path,
    *,
    copy_exemplars: bool = False,
    task_record: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> None:
    """Write the files of a model into a directory.

    ``copy_exemplars``: also copy exemplars that are files. ``task_record`` and ``tensors`` (by file name) belong to the
    model of a task of a run.
    """
    method = model.method.state()
    content = {WEIGHTS: method.tensors, **tensors}
    sources: dict[str, SourceRef | None] = {MEMORY: None, HELD: None}
    for name, images in ((MEMORY, model.memory.images), (HELD, model.held.images)):
        if images:
            sources[name], content[name] = save_exemplars(images, directory, copy_exemplars)
    if len(model.digests.labels):
        content[DIGESTS] = model.digests.as_tensors()
    files = {name: write_tensors(directory / name, entries) for name, entries in content.items()}
    plugins = _plugins(model, method.description)
    try:
        state = ModelState(
            format=FORMAT,
            method=model.name,
            settings=model.method.settings.model_dump(mode="json"),
            architecture=model.method.architecture,
            parts=method.description,
            tasks=model.sizes,
            classes=model.classes,
            images=model.shape,
            data=model.data,
            augment=model.augment,
            readouts=tuple(model.readouts()),
            memory=MemoryState(budget=str(model.memory.budget), source=sources[MEMORY]),
            held=sources[HELD],
            usage=model.usage,
            seed=model.seed,
            plugins=plugins,
            plugin_digests={name: plugin_code(name).digest for name in plugins},
            files=files,
            task_record=None if task_record is None else dict(task_record),
        )
    except ValidationError as error:
        raise UserError(f"the model cannot be saved: {describe_validation_error(error)}") from None
    write_state(directory, state)


def read_model(path: str | Path, data_dir: Path | None = None, at_hand: Source | None = None) -> Model:
    """Read a saved model. Its exemplars are loaded when they are first needed: predicting needs none.

    Exemplars of the source ``at_hand`` are taken from it, others from the data directory.
    """
    location = checked_path("the path of a model", path)
    return at_model(location, lambda directory: _read_model(directory, data_dir, at_hand))


def _read_model(directory: Path, data_dir: Path | None, at_hand: Source | None) -> Model:
    state = read_state(directory)
    require_plugins(state.plugins, directory)
    changed = changed_plugin(state.plugin_digests)
    if changed is not None:
        warnings.warn(
            f"the code of the plugin '{changed}' has changed since {directory} was saved; predictions may differ",
            stacklevel=2,
        )
    spec = METHODS[state.method]
    BACKBONES[state.architecture.backbone]
    try:
        settings = spec.build.Settings.model_validate(state.settings)
    except ValidationError as error:
        raise invalid_state(directory, error) from None
    method = spec.build(settings, state.architecture)
    tensors = read_beside(directory, state, WEIGHTS)
    recall = partial(_recalled, directory, state, at_hand, data_dir)
    try:
        method.restore(MethodState(tensors, state.parts))
        model = Model(
            name=state.method,
            method=method,
            data=state.data,
            shape=state.images,
            memory=Memory(MemoryBudget.parse(state.memory.budget), partial(recall, state.memory.source, MEMORY)),
            held=KeptImages(partial(recall, state.held, HELD)),
            usage=state.usage,
            digests=ImageDigests(partial(_load_digests, directory, state)),
            augment=state.augment,
            seed=state.seed,
            readout=state.readouts[0],
            sizes=state.tasks,
            classes=state.classes,
        )
        _require_fit(state, method)
    except Exception as error:  # building from a description can fail in any way
        # Errors of torch may have a stack trace of several lines.
        first_line = str(error).partition("\n")[0]
        reason = first_line if isinstance(error, UserError) else f"{type(error).__name__}: {first_line}"
        raise UserError(f"{directory / WEIGHTS} does not fit the model that {STATE} describes: {reason}") from error
    if tuple(model.readouts()) != state.readouts:
        raise UserError(f"{directory / STATE} names other readouts than '{state.method}' has")
    return model


def require_complete(directory: Path) -> None:
    """Check that all files of a model directory are unchanged, also those that predicting does not need."""
    state = read_state(directory)
    for name, checksum in state.files.items():
        verify_checksum(directory / name, checksum)
    for name in exemplar_files(state):
        require_kept_picture(directory / EXEMPLARS / name)


def at_model(path: Path, read: Callable[[Path], T]) -> T:
    """The result of ``read`` for the model directory of a path, also while the model changes."""
    return read_current(path, read) if is_versioned(path) else read(model_at(path))


def read_beside(directory: Path, state: ModelState, name: str) -> dict[str, Tensor]:
    """The tensors of a file beside ``state.json``, after its checksum was verified."""
    if name not in state.files:
        raise UserError(f"{directory / STATE} does not describe a model with a file {name}: 'files' has none")
    return read_tensors(directory / name, state.files[name])[0]


def _require_fit(state: ModelState, method: Method) -> None:
    """Every readout must rank the classes, from images of the model's channels."""
    readouts = method.readouts()
    if state.readouts[0] not in readouts:
        raise UserError(f"it has no readout '{state.readouts[0]}'")
    classes = len(state.classes)
    for name, readout in readouts.items():
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
    where: SourceRef | None,
    file: str,
) -> ImageSet | None:
    """Saved exemplars, or images that were held out."""
    if where is None:
        return None
    tensors = read_beside(directory, state, file)
    try:
        return load_exemplars(tensors, where, state.images, len(state.classes), at_hand, data_dir, directory)
    except UserError as error:
        what = "exemplars" if file == MEMORY else "held-out images"
        raise UserError(f"the {what} of {directory} cannot be used: {error}") from error


def _load_digests(directory: Path, state: ModelState) -> tuple[Int64, UInt64]:
    if DIGESTS not in state.files:
        return ImageDigests.NONE
    try:
        return ImageDigests.from_tensors(read_beside(directory, state, DIGESTS), len(state.classes))
    except UserError as error:
        raise UserError(f"{directory / DIGESTS} cannot be used: {error}") from error
