"""A dataset in outline: classes and numbers of images as they will be, known without a file of it."""

from __future__ import annotations

import numpy as np

from ..sources.blank import BlankSource
from ..sources.imageset import ImageSet
from .dataset import Dataset, find_dataset


def outlined(name: str, image_size: int | None = None) -> Dataset | None:
    """The dataset of this name with images that mean nothing, all classes alike; None where its size is not known."""
    entry, argument = find_dataset(name)
    if argument or entry.classes is None or entry.extent is None:
        return None
    size, channels, classes = image_size or entry.extent.size, len(entry.spec.mean), entry.classes

    def images(count: int) -> ImageSet:
        # Photographs are read from files.
        source = BlankSource(count, channels, size, in_memory=not entry.spec.photographs)
        rows = np.arange(count, dtype=np.int64)
        return ImageSet(source, rows, rows * classes // count)

    names = tuple(f"class {number}" for number in range(classes))
    return Dataset(name, names, images(entry.extent.train), images(entry.extent.test), entry.spec)
