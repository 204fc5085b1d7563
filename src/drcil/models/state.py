"""``state.json``: what a model directory says of itself, as one validated object."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..arguments import shown
from ..data.datasets.dataset import DataSpec
from ..data.sources.description import AnyDescription, Files, Kept, OfDataset, leaves
from ..data.sources.imageset import ImageShape
from ..disk import put_back, write_sealed
from ..errors import UserError, shortened
from ..limits import CHANNELS, IMAGE_SIZE, SEED
from ..methods import Architecture
from ..methods.parts import PartForm
from ..nets.description import ExpandedForm, NetForm, Size, TaskNetForm
from ..reading import is_file, read_json, unsealed
from ..seals import Seal
from ..validation import explain
from .usage import Usage

FORMAT = 4
STATE, WEIGHTS, MEMORY, HELD = "state.json", "method.safetensors", "memory.safetensors", "held.safetensors"
LEARNING = "learning"
"""Where a model that changes keeps what it is learning."""
TASKS = "tasks"
"""Where a run keeps a model for each finished task."""
OF_A_RUN = frozenset({"run", "data_digest", "previous", "stream_tasks", "versions", "task"})
"""Entries of a run's finished task, which a model does without."""

_LARGEST = 1e4
"""Of a mean or a standard deviation, and of its inverse."""

Name = Annotated[str, Field(min_length=1)]


class MemoryState(BaseModel):
    """The budget, and where the exemplars are found; None: there are none."""

    model_config = ConfigDict(extra="forbid")

    budget: Annotated[str, Field(pattern="^(all|none|[0-9]{1,15}(/class)?)$")]
    source: AnyDescription | None


class ModelState(BaseModel):
    """What ``state.json`` says."""

    model_config = ConfigDict(extra="forbid")

    format: int
    method: Annotated[str, Field(max_length=200)]
    settings: dict[str, Any]
    architecture: Architecture
    parts: dict[Annotated[str, Field(pattern="^[^.]+$")], PartForm]
    """How to build what the weights fill."""
    tasks: Annotated[tuple[Size, ...], Field(min_length=1, max_length=10_000)]
    """The number of classes that each task brought and that are still there; 0: all of them were forgotten."""
    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    """By label: those of the first task come first. Where some were forgotten, the labels of later ones close up."""
    images: ImageShape
    data: DataSpec
    augment: Name | None
    readouts: Annotated[tuple[Name, ...], Field(min_length=1)]
    """The leading one first."""
    memory: MemoryState
    held: AnyDescription | None
    """Where the images are that were held out of training; None: there are none."""
    usage: Usage | None
    seed: Annotated[int, Field(ge=SEED.least, le=SEED.most)]
    plugins: tuple[Name, ...]
    """The code that is needed to build it and is not drcil's own: modules, and files by their absolute path."""
    files: dict[Annotated[str, Field(pattern=r"^[a-z]+\.safetensors$")], Seal]
    """The files beside this one."""

    @model_validator(mode="after")
    def _entries_agree(self) -> ModelState:
        images, data = self.images, self.data
        if len(self.classes) != sum(self.tasks):
            raise ValueError(f"'classes' has {len(self.classes)} names, but the 'tasks' have {sum(self.tasks)} classes")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("'classes' has the same name twice")
        if not 1 <= images.size <= IMAGE_SIZE.most or images.channels not in CHANNELS:
            raise ValueError(f"'images' of {images} (channels, height, width) are not possible")
        if self.architecture.channels_in != images.channels:
            raise ValueError(f"'architecture' is not for {images.channels} channels, as 'images' have them")
        if self.architecture.image_size != images.size:
            raise ValueError(f"'architecture' is not for {images.size} pixels, as 'images' have them")
        if not len(data.mean) == len(data.std) == images.channels:
            raise ValueError(f"'data' needs one 'mean' and one 'std' for each of {images.channels} channels")
        if max(map(abs, data.mean)) > _LARGEST or not 1 / _LARGEST <= min(data.std) <= max(data.std) <= _LARGEST:
            raise ValueError("'data' has a 'mean' or a 'std' that values from 0 to 1 cannot have")
        if not 0 <= data.padding <= images.size:
            raise ValueError(f"'data.padding' is {data.padding}, but it must be from 0 to the size of an image")
        for name, part in self.parts.items():
            head = part.head if isinstance(part, NetForm | ExpandedForm | TaskNetForm) else None
            if head and (sum(head.tasks) > len(self.classes) or len(head.tasks) > len(self.tasks)):
                raise ValueError(f"'parts.{name}.head.tasks' has more classes or tasks than 'tasks'")
        if self.usage and {*map(len, (self.usage.images, self.usage.held, self.usage.accuracy))} != {len(self.classes)}:
            raise ValueError(f"'usage' does not tell of {len(self.classes)} classes")
        if self.usage and self.usage.seen and len(self.usage.seen) != len(self.classes):
            raise ValueError(f"'usage.seen' is not of {len(self.classes)} classes")
        for entry, file, where in (("memory.source", MEMORY, self.memory.source), ("held", HELD, self.held)):
            if (file in self.files) != (where is not None):
                raise ValueError(f"'{entry}' must say where the images of {file} are, and there must be one")
            for source in leaves(where) if where else ():
                if isinstance(source, OfDataset | Files | Kept) and source.size != images.size:
                    raise ValueError(f"'{entry}' has images of {source.size} pixels instead of {images.size}")
                if isinstance(source, Files | Kept) and source.channels != images.channels:
                    raise ValueError(f"'{entry}' has images of {source.channels} channels, not {images.channels}")
        return self


def write_state(directory: Path, state: ModelState, extra: Mapping[str, Any]) -> None:
    """Write what ``read_state`` reads; ``extra``: the entries that a run adds."""
    strange = extra.keys() - OF_A_RUN
    if strange:
        raise ValueError(f"{', '.join(sorted(strange))}: nobody would know such entries of {STATE}")
    write_sealed(directory / STATE, {**_as_json(state), **extra})


def _as_json(state: ModelState) -> dict[str, Any]:
    """As it is written: sources and usage have only the entries that they need."""
    values = state.model_dump(mode="json")
    if state.usage is not None and not state.usage.seen:
        del values["usage"]["seen"]
    if state.memory.source is not None:
        values["memory"]["source"] = state.memory.source.model_dump(mode="json", exclude_none=True)
    if state.held is not None:
        values["held"] = state.held.model_dump(mode="json", exclude_none=True)
    return values


def read_state(directory: Path) -> dict[str, Any]:
    """The JSON of a model, checked for its format version and for damage."""
    put_back(directory.absolute())
    path = directory / STATE
    if not is_file(path):
        why = f"it has no {STATE}" if os.path.isdir(directory) else "there is no such directory"
        if os.path.isdir(directory / LEARNING):
            why = "its first lesson was stopped, and goes on with the same 'drcil learn'"
        raise UserError(f"{directory} is not a model: {why}")
    state = read_json(path)
    found = state.get("format") if isinstance(state, dict) else None
    if type(found) is not int or found != FORMAT:
        raise UserError(f"{directory} has model format {shown(found)}; this version of drcil reads format {FORMAT}")
    return unsealed(path, state)


def parse_state(directory: Path) -> ModelState:
    """The same as `read_state`, typed, without what a run adds."""
    values = {name: value for name, value in read_state(directory).items() if name not in OF_A_RUN}
    try:
        # As JSON again: strict, so that no text passes for a number, but with lists for tuples.
        state = ModelState.model_validate_json(json.dumps(values, ensure_ascii=False).encode(), strict=True)
    except UnicodeEncodeError:
        raise UserError(f"{directory / STATE} does not describe a model: it has text that is not UTF-8") from None
    except ValidationError as error:
        raise misfit(directory, error) from None
    kept = _as_json(state)
    for entry, wrong in ((_dropped(values, kept), "is not known"), (_dropped(kept, values), "is missing")):
        if entry is not None:
            raise UserError(f"{directory / STATE} does not describe a model: '{shortened(entry)}' {wrong}")
    return state


def misfit(directory: Path, error: ValidationError) -> UserError:
    return UserError(f"{directory / STATE} does not describe a model: {explain(error)}")


def _dropped(given: Any, kept: Any) -> str | None:
    """The first entry, by its path, of what is given that is not among what was kept."""
    if not isinstance(given, dict) or not isinstance(kept, dict):
        return None
    for name, value in given.items():
        if name not in kept:
            return str(name)
        inner = _dropped(value, kept[name])
        if inner is not None:
            return f"{name}.{inner}"
    return None
