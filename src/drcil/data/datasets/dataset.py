"""What a dataset is, and the table of those that are known by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...registry import Registry
from ..sources.imageset import ImageSet


@dataclass(frozen=True)
class DataSpec:
    """What methods, streams and augmentation need to know about a kind of images."""

    kind: str
    """Which recipes apply: ``digits``, ``cifar`` or ``imagenet``."""
    backbone: str
    """The backbone used unless another is asked for."""
    memory: str
    """The memory budget used unless the protocol or the user says otherwise."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation per channel, of values in [0, 1]."""
    padding: int
    """Zeros added on each side before a random crop (images in memory)."""
    flip: bool
    augment: str
    """The training augmentation used unless another is asked for."""


@dataclass(frozen=True)
class Dataset:
    """Training and test images with one list of class names; labels are positions in it."""

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    spec: DataSpec


class DatasetLoader(Protocol):
    def __call__(self, root: Path | None, image_size: int | None) -> Dataset:
        """Load from the data directory (None: not given), at this image size (None: the dataset's own)."""


DATASETS: Registry[DatasetLoader] = Registry("dataset")
SPECS: Registry[DataSpec] = Registry("dataset")
"""What is known of each dataset before it is loaded."""
