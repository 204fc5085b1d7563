"""ImageNet (ILSVRC 2012) and its two 100-class subsets, from ``imagenet/train/WNID`` and ``imagenet/val/WNID``.

``imagenet1000``       all classes.
``imagenet100``        the 100 classes drawn with seed 1993 (LUCIR, FOSTER, long-tailed CIL, most likely DRC).
``imagenet100-first``  the alphabetically first 100 (BiC, PODNet, DER, DyTox); only 9 of them are in the other.

Results on the two subsets cannot be compared. Class ids are alphabetical in all three. ``lists/imagenet100.txt`` keeps
the order in which the 100 were drawn, which long-tailed CIL uses as its label order (`draw_order`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from ...errors import UserError
from ...settings import data_directory
from ..class_folders import load_class_folders
from ..dataset import (
    DATASETS,
    LONG_TAILED_PROTOCOLS,
    PROTOCOLS_OF_A_HUNDRED,
    Dataset,
    DatasetSize,
    ManualDownload,
    register_dataset,
)
from ..dataset import PHOTO_SPEC as PHOTO
from ..decoding import STANDARD
from ..file_source import directory_names

FIRST_OF_HUNDRED, LAST_OF_HUNDRED = "n01440764", "n01855672"

SPEC = replace(PHOTO, memory="20000", large_base_memory="20/class", augment="auto")
SPEC_OF_A_HUNDRED = replace(SPEC, memory="2000")
EXTENT = DatasetSize(1_281_167, 50_000, STANDARD)
EXTENT_OF_A_HUNDRED = DatasetSize(EXTENT.train // 10, EXTENT.test // 10, STANDARD)
"""As many as an average hundred of the classes have."""
HOME = ManualDownload(
    "obtain ILSVRC 2012 from https://image-net.org and arrange it as "
    "imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG in the data directory"
)


@cache
def draw_order() -> tuple[str, ...]:
    """The seed-1993 classes in the order in which they were drawn."""
    return tuple(files(__package__).joinpath("lists", "imagenet100.txt").read_text().split())


@register_dataset("imagenet1000", spec=SPEC, classes=1000, protocols=("b0-10",), download=HOME, size=EXTENT)
def load_imagenet1000(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """ImageNet: all 1,000 classes."""
    home = _home("imagenet1000", root)
    classes = directory_names(home / "train")
    if len(classes) != 1000:
        raise UserError(f"imagenet1000 needs 1000 class directories in {home / 'train'}, there are {len(classes)}")
    return _load("imagenet1000", home, classes, image_size)


@register_dataset(
    "imagenet100",
    spec=SPEC_OF_A_HUNDRED,
    classes=100,
    protocols=PROTOCOLS_OF_A_HUNDRED + LONG_TAILED_PROTOCOLS,
    download=HOME,
    size=EXTENT_OF_A_HUNDRED,
    drawn_classes=draw_order(),
)
def load_imagenet100(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """ImageNet: the 100 classes drawn with seed 1993."""
    return _load("imagenet100", _home("imagenet100", root), sorted(draw_order()), image_size)


@register_dataset(
    "imagenet100-first",
    spec=SPEC_OF_A_HUNDRED,
    classes=100,
    protocols=PROTOCOLS_OF_A_HUNDRED,
    download=HOME,
    size=EXTENT_OF_A_HUNDRED,
)
def load_imagenet100_first(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """ImageNet: the alphabetically first 100 classes."""
    home = _home("imagenet100-first", root)
    classes = directory_names(home / "train")[:100]
    if len(classes) < 100 or (classes[0], classes[-1]) != (FIRST_OF_HUNDRED, LAST_OF_HUNDRED):
        raise UserError(
            f"imagenet100-first needs ImageNet's first 100 class directories, {FIRST_OF_HUNDRED} to {LAST_OF_HUNDRED}, "
            f"and they are not the first in {home / 'train'}"
        )
    return _load("imagenet100-first", home, classes, image_size)


def _home(name: str, root: Path | None) -> Path:
    home = data_directory(root) / "imagenet"
    for split in ("train", "val"):
        if not os.path.isdir(home / split):
            raise UserError(
                f"ImageNet not found: {home / split} is not a directory. Put the class directories there, "
                f"or set --data to the directory that contains 'imagenet'"
            )
    return home


def _load(name: str, home: Path, classes: Sequence[str], image_size: int | None) -> Dataset:
    for split in ("train", "val"):
        missing = sorted(set(classes) - set(directory_names(home / split)))
        if missing:
            raise UserError(
                f"{name} needs {len(classes)} class directories in {home / split}, and {len(missing)} are missing, "
                f"such as {missing[0]}"
            )
    size = image_size or STANDARD
    return Dataset(
        name=name,
        classes=tuple(classes),
        train=load_class_folders((home / "train").absolute(), classes, size).images,
        test=load_class_folders((home / "val").absolute(), classes, size).images,
        spec=DATASETS[name].spec,
    )
