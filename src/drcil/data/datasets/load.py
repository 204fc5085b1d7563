"""Datasets by name: ``digits``, ``cifar100``, ``imagenet100``, …, or ``folder:PATH`` for a user's own images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...arguments import optional, whole
from ...limits import IMAGE_SIZE
from ..sources.description import Chain, Description, Files, OfDataset, parse_description
from ..sources.files import FileSource
from ..sources.imageset import ChainSource, Source
from .dataset import Dataset, find_dataset


def data_kind(name: str) -> str:
    """Which tables of recipes and profiles apply to a dataset, known before it is loaded."""
    return find_dataset(name)[0].spec.kind


def load_dataset(name: str, data_dir: Path | None = None, image_size: int | None = None) -> Dataset:
    """A dataset by name: ``cifar100``, ``folder:PATH``.

    ``data_dir``: where downloaded datasets are (default: ``$DRCIL_DATA``, else ``./data``). ``image_size``: another
    size than the dataset's own; images in memory are averaged by area, images on disk are scaled and cropped to it.
    """
    image_size = optional(whole, "the image size", image_size, IMAGE_SIZE)
    entry, argument = find_dataset(name)
    return entry.load(*argument, data_dir, image_size)


def find_source(description: Mapping[str, Any] | Description, data_dir: Path | None = None) -> Source:
    """The source that `Source.describe` told of; the inverse of it for all kinds but ``embedded``."""
    where = parse_description(description) if isinstance(description, Mapping) else description
    if isinstance(where, OfDataset):
        dataset = load_dataset(where.name, data_dir, where.size)
        return {"train": dataset.train, "test": dataset.test}[where.split].source
    if isinstance(where, Files):
        return FileSource.found(where)
    if isinstance(where, Chain):
        return ChainSource([find_source(part, data_dir) for part in where.parts])
    raise ValueError(f"a source of kind '{where.kind}' cannot be found again; keep a copy of its images")
