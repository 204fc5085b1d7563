"""Datasets by name: ``digits``, ``cifar100``, ``imagenet100``, …, or ``folder:PATH`` for a user's own images."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import folder
from .dataset import DATASETS, SPECS, Dataset
from .files import FileSource, damaged
from .imageset import ChainSource, ImageSet, Source

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


def skipped_files(dataset: Dataset) -> tuple[str, ...]:
    """The unreadable files that were left out of a dataset when it was loaded."""
    sources = {id(images.source): images.source for images in (dataset.train, dataset.test)}
    return tuple(path for source in sources.values() if isinstance(source, FileSource) for path in source.skipped)


@dataclass(frozen=True)
class Report:
    """What a look at a dataset found: facts, and problems by file."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]


def check_dataset(
    name: str, data_dir: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Load a dataset, which checks its checksums, and decode every one of its files on disk."""
    dataset = load_dataset(name, data_dir)
    facts = [f"{dataset.name}: {len(dataset.classes)} classes"]
    problems: list[str] = []
    looked: list[Source] = []
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        source = images.source
        facts.append(_summary(split, images, len(dataset.classes)))
        if isinstance(source, FileSource) and not any(source is seen for seen in looked):
            bad = damaged(source.files, thorough=True, progress=progress)
            problems += [f"{source.files.path(row)}: {why}" for row, why in sorted(bad.items())]
        looked.append(source)
    return Report(tuple(facts), tuple(problems))


def _summary(split: str, images: ImageSet, classes: int) -> str:
    counts = images.counts(classes)
    each = str(counts.min()) if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    source = images.source
    colours = "grey" if source.channels == 1 else "RGB"
    text = f"{split}: {len(images)} images, {each} per class, {source.size}x{source.size} {colours}"
    return f"{text}, md5 as published" if "md5" in source.describe() else text
