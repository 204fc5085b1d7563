"""A look at a dataset: what it has, and which of its files are damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..sources.files import FileSource, PictureSource, damaged_pictures
from ..sources.imageset import ImageSet, Source
from .dataset import Dataset
from .load import load_dataset


def skipped_files(dataset: Dataset) -> tuple[str, ...]:
    """The unreadable files that were left out of a dataset when it was loaded."""
    sources = {id(images.source): images.source for images in (dataset.train, dataset.test)}
    return tuple(path for source in sources.values() if isinstance(source, FileSource) for path in source.skipped)


@dataclass(frozen=True)
class Report:
    """What a look at a dataset found: facts, and problems by file."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    dataset: Dataset


def check_dataset(
    name: str, data_dir: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Load a dataset, which checks its checksums, and decode every one of its pictures on disk."""
    dataset = load_dataset(name, data_dir)
    facts = [f"{dataset.name}: {len(dataset.classes)} classes"]
    problems: list[str] = []
    looked: list[Source] = []
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        source = images.source
        facts.append(_summary(split, images, len(dataset.classes)))
        if isinstance(source, PictureSource) and not any(source is seen for seen in looked):
            bad = damaged_pictures(source, progress)
            problems += [f"{source.name(row)}: {why}" for row, why in sorted(bad.items())]
        looked.append(source)
    return Report(tuple(facts), tuple(problems), dataset)


def _summary(split: str, images: ImageSet, classes: int) -> str:
    counts = images.counts(classes)
    each = str(counts.min()) if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    source = images.source
    colours = "grey" if source.channels == 1 else "RGB"
    text = f"{split}: {len(images)} images, {each} per class, {source.size}x{source.size} {colours}"
    return f"{text}, md5 as published" if "md5" in source.describe() else text
