"""``folder:PATH``: a user's own images, one directory per class.

Either ``PATH/train/CLASS/*`` and ``PATH/test/CLASS/*`` (or ``val``, where ``test`` has no class directories), or just
``PATH/CLASS/*``. In the second case about a fifth of every class is set aside for testing, chosen by a hash of the
file name, so that a file stays on its side when others are added.

Class names are the directory names, sorted. Files are looked at when the folder is loaded: unreadable ones are left
out and named in ``skipped`` of the source, and a class left without images is an error. Beyond 100,000 files in
a split this would take too long to wait for; they are then believed, an unreadable one stops the run when it is read,
and ``drcil data check`` finds them all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import UserError
from ..labels import normal, one_line
from ..sources.decode import STANDARD
from ..sources.filelist import directory_names, is_text
from ..sources.files import FileSource, damaged
from ..sources.imageset import ImageSet
from ..sources.listing import LARGE, listed
from .dataset import ByHand, Dataset, DataSpec, dataset
from .place import expanded
from .splits import require_common, set_aside, some

SPEC = DataSpec(
    kind="imagenet",
    backbone="resnet18",
    memory="20/class",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    augment="basic",
    crop="resized",
    flip=True,
    brightness=True,
    policy="imagenet",
)
_LAYOUTS = "PATH/CLASS/images, or PATH/train/CLASS/images and PATH/test/CLASS/images"
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Directories that hold no class where there are no others beside them; a class may well be called 'train'."""


@dataset("folder", spec=SPEC, home=ByHand("it is a folder of your own"), argument="PATH")
def load_folder(place: str | Path, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Your own images, one directory per class. Either of the two layouts will do."""
    path = expanded(place).absolute()
    if not os.path.isdir(path):  # Unlike the path's own method it is never an error.
        raise UserError(f"folder:{path} is not a directory; give the path of a folder with one directory per class")
    if not is_text(str(path)):
        raise UserError(f"the path {os.fsencode(path)!r} is not UTF-8; rename it")
    classes = directory_names(path)
    size = image_size or STANDARD
    if "train" in classes and directory_names(path / "train"):
        training, testing = path / "train", _test_directory(path)
        classes = directory_names(training)
        require_common(classes, directory_names(testing), str(training), str(testing))
        train, test = image_set(training, classes, size), image_set(testing, classes, size)
    else:
        require_classes(path, classes, _LAYOUTS)
        everything = image_set(path, classes, size)
        assert isinstance(everything.source, FileSource)
        train, test = set_aside(everything, classes, everything.source.files.encoded(everything.rows))
    return Dataset(f"folder:{path}", tuple(map(normal, classes)), train, test, SPEC)


def require_classes(path: Path, directories: Sequence[str], expected: str = "PATH/CLASS/images") -> None:
    """The directories of a folder must be classes."""
    if not directories:
        raise UserError(f"{path} has no class directories; expected {expected}")
    if {name.lower() for name in directories} <= _SPLITS:
        raise UserError(f"the directories in {path} are splits, not classes: {some(directories)}; expected {expected}")


def image_set(root: Path, classes: Sequence[str], size: int, channels: int = 3) -> ImageSet:
    """The readable images of these class directories, labelled by position."""
    _require_distinct(root, classes)
    files = listed(root, classes)
    bad = damaged(files) if len(files) <= LARGE else {}
    source = FileSource(files, size, channels=channels, skipped=[files.path(row) for row in bad])
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), files.counts())
    readable = np.ones(len(files), dtype=np.bool_)
    readable[list(bad)] = False
    rows = np.flatnonzero(readable).astype(np.int64, copy=False)
    images = ImageSet(source, rows, labels[rows])
    empty = np.flatnonzero(images.counts(len(classes)) == 0)
    if len(empty):
        label = int(empty[0])
        lost = [files.name(row) for row in bad if labels[row] == label]
        nested = directory_names(root / classes[label])
        why = f"; unreadable: {some(lost)}" if lost else f", only directories: {some(nested)}" if nested else ""
        raise UserError(f"class '{classes[label]}' has no readable image in {root / classes[label]}{why}")
    return images


def _require_distinct(root: Path, classes: Sequence[str]) -> None:
    """Names that can be written down, and told apart when they are read."""
    seen: set[str] = set()
    for name in classes:
        if not is_text(name):
            raise UserError(f"the name of the class directory {os.fsencode(name)!r} in {root} is not UTF-8; rename it")
        form = one_line(f"the name of a class directory in {root}", name)
        if form in seen:
            raise UserError(f"{root} has two class directories '{form}', of different Unicode form; rename one")
        seen.add(form)


def _test_directory(path: Path) -> Path:
    for name in ("test", "val"):
        if os.path.isdir(path / name) and directory_names(path / name):
            return path / name
    raise UserError(f"{path} has train/CLASS but neither test/CLASS nor val/CLASS directories beside it")
