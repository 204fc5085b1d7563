"""Datasets by name: ``digits``, ``cifar100``, ``imagenet100``, …, or ``folder:PATH`` for a user's own images."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..sources.files import FileSource
from ..sources.imageset import ChainSource, ImageSet, Source
from . import folder
from .dataset import DATASETS, SPECS, Dataset

FOLDER = "folder:"


def dataset_names() -> list[str]:
    """The datasets known by name. Every module of this room is imported first, so a new file is all a dataset takes."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.ispkg:
            importlib.import_module(f"{package}.{module.name}")
    return sorted(DATASETS)


def data_kind(name: str) -> str:
    """Which recipes and profiles apply to a dataset, known before it is loaded. A user's own counts as photographs."""
    dataset_names()
    if name not in SPECS:
        return folder.SPEC.kind
    return SPECS[name].kind


def load_dataset(name: str, data_dir: Path | None = None, image_size: int | None = None) -> Dataset:
    """A dataset by name, or ``folder:PATH``.

    ``data_dir``: where downloaded datasets are (default: ``$DRCIL_DATA``, else ``./data``). ``image_size``: another
    size than the dataset's own; images in memory are averaged by area, images on disk are scaled and cropped to it.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"image size {image_size} is not possible; give a number of pixels above 0")
    if name.startswith(FOLDER):
        if not name.removeprefix(FOLDER):
            raise UserError("'folder:' names no folder; give it as folder:PATH")
        return folder.load_folder(Path(name.removeprefix(FOLDER)), image_size)
    dataset_names()
    return DATASETS[name](data_dir, image_size)


def find_source(description: dict[str, Any], data_dir: Path | None = None) -> Source:
    """The source that `Source.describe` told of; the inverse of it for all kinds but ``embedded``."""
    kind = description["kind"]
    if kind == "dataset":
        dataset = load_dataset(description["name"], data_dir, description["size"])
        split: ImageSet = getattr(dataset, description["split"])
        return split.source
    if kind == "files":
        return FileSource.found(description)
    if kind == "chain":
        return ChainSource([find_source(part, data_dir) for part in description["parts"]])
    raise ValueError(f"a source of kind '{kind}' cannot be found again; keep a copy of its images")
