"""Schema of a model's state.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..data.dataset import DataSpec
from ..data.image_set import ImageShape
from ..data.source_refs import DatasetRef, FilesRef, KeptRef, StoredRef, leaves
from ..errors import UserError, format_value
from ..files import FileChecksum, read_json, restore_replaced, verified_entries, write_checksummed_json
from ..methods import Architecture
from ..settings import CHANNELS, CLASSES, IMAGE_SIZE, SEED, describe_validation_error
from .usage import Usage

FORMAT = 1
STATE, WEIGHTS, MEMORY, HELD = "state.json", "method.safetensors", "memory.safetensors", "held.safetensors"
DIGESTS = "digests.safetensors"
"""Digests of the images that a model learnt from or holds out, and their labels."""
LEARNING = "learning"
"""Directory of a model store with the snapshots of unfinished changes."""
TASKS = "tasks"
"""Directory of a run with a model for each finished task."""

_LARGEST = 1e4
"""The largest mean or standard deviation, and the largest inverse of a standard deviation."""

Name = Annotated[str, Field(min_length=1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MemoryState(_Record):
    """The budget, and the source of the exemplars; None: there are none."""

    budget: Annotated[str, Field(pattern="^(all|none|[0-9]{1,15}(/class)?)$")]
    source: StoredRef | None


class ModelState(_Record):
    """The content of ``state.json``."""

    format: int
    method: Annotated[str, Field(max_length=200)]
    settings: dict[str, Any]
    architecture: Architecture
    parts: dict[Annotated[str, Field(pattern="^[^.]+$")], dict[str, Any]]
    """How to build the parts of the method before their tensors are loaded."""
    tasks: Annotated[tuple[Annotated[int, Field(ge=0, le=CLASSES.most)], ...], Field(min_length=1)]
    """For each task, the number of its classes that are not forgotten."""
    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Class names by label, those of the first task first."""
    images: ImageShape
    data: DataSpec
    augment: Name | None
    readouts: Annotated[tuple[Name, ...], Field(min_length=1)]
    """The leading one first."""
    memory: MemoryState
    held: StoredRef | None
    """The source of the held-out images; None: there are none."""
    usage: Usage | None
    seed: Annotated[int, Field(ge=SEED.least, le=SEED.most)]
    plugins: tuple[Name, ...]
    """The code outside drcil that is needed to build the model: modules, and files by their absolute path."""
    plugin_digests: dict[Name, Name]
    """Digests of their code when the model was saved."""
    files: dict[Annotated[str, Field(pattern=r"^[a-z]+\.safetensors$")], FileChecksum]
    """The files beside this one."""
    task_record: dict[str, Any] | None = None
    """What a run records about a finished task; ``runs`` has the schema."""

    @model_validator(mode="after")
    def _entries_agree(self) -> ModelState:
        images, data = self.images, self.data
        if self.plugin_digests.keys() != set(self.plugins):
            raise ValueError("'plugin_digests' is not about the 'plugins'")
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
            head = part.get("head")
            tasks = head.get("tasks") if isinstance(head, dict) else None
            # Otherwise an edited file could ask for more memory than there is, before its weights are checked.
            if isinstance(tasks, list) and len(tasks) > len(self.tasks):
                raise ValueError(f"'parts.{name}.head.tasks' has more tasks than 'tasks'")
            if isinstance(tasks, list) and any(type(size) is not int or size > len(self.classes) for size in tasks):
                raise ValueError(f"'parts.{name}.head.tasks' has more classes than 'classes'")
        if self.usage and {*map(len, (self.usage.images, self.usage.held, self.usage.accuracy))} != {len(self.classes)}:
            raise ValueError(f"'usage' is not for {len(self.classes)} classes")
        for entry, file, where in (("memory.source", MEMORY, self.memory.source), ("held", HELD, self.held)):
            if (file in self.files) != (where is not None):
                raise ValueError(f"'{entry}' must say where the images of {file} are, and there must be one")
            for source in leaves(where) if where else ():
                if isinstance(source, DatasetRef | FilesRef | KeptRef) and source.size != images.size:
                    raise ValueError(f"'{entry}' has images of {source.size} pixels instead of {images.size}")
                if isinstance(source, FilesRef | KeptRef) and source.channels != images.channels:
                    raise ValueError(f"'{entry}' has images of {source.channels} channels, not {images.channels}")
        return self


def write_state(directory: Path, state: ModelState) -> None:
    """Write what ``read_state`` reads."""
    write_checksummed_json(directory / STATE, state.model_dump(mode="json"))


def read_state_json(directory: Path) -> dict[str, Any]:
    """The content of ``state.json``, after its format version and its checksum were verified."""
    restore_replaced(directory.absolute())
    path = directory / STATE
    if not os.path.isfile(path):
        reason = f"it has no {STATE}" if os.path.isdir(directory) else "there is no such directory"
        if os.path.isdir(directory / LEARNING):
            reason = "its first 'drcil learn' was interrupted; the same command resumes it"
        raise UserError(f"{directory} is not a model: {reason}")
    values = read_json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if type(version) is not int or version != FORMAT:
        raise UserError(
            f"{directory} has model format {format_value(version)}; this version of drcil reads format {FORMAT}"
        )
    return verified_entries(path, values)


def parse_state(directory: Path, values: Mapping[str, Any]) -> ModelState:
    """The typed content of the ``state.json`` in a directory."""
    try:
        # JSON text again, because a strict schema takes lists for tuples only from JSON.
        return ModelState.model_validate_json(json.dumps(values, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise UserError(f"{directory / STATE} does not describe a model: it has text that is not UTF-8") from None
    except ValidationError as error:
        raise invalid_state(directory, error) from None


def read_state(directory: Path) -> ModelState:
    """The typed content of ``state.json``; no other file is read."""
    return parse_state(directory, read_state_json(directory))


def exemplar_files(state: ModelState) -> list[str]:
    """The names of the image files that are stored in the model directory."""
    sources = [source for images in (state.memory.source, state.held) if images for source in leaves(images)]
    return sorted({name for source in sources if isinstance(source, KeptRef) for name in source.files})


def invalid_state(directory: Path, error: ValidationError) -> UserError:
    return UserError(f"{directory / STATE} does not describe a model: {describe_validation_error(error)}")
