"""Labelled images from a folder per class or a CSV file; train/test split by hash."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, check_path
from ..files import TEXT_LIMIT, read_bytes
from .decoding import STANDARD, natural_size, open_picture
from .file_source import (
    FileList,
    FileSource,
    IgnoredFiles,
    directory_names,
    find_unreadable,
    is_text,
    list_directory,
)
from .image_set import ImageSet, by_class
from .user_images import class_names, load_images, normalize_class_name, one_line

TEST_SHARE = 0.2


def require_common(train: Sequence[str], test: Sequence[str], train_source: str, test_source: str) -> None:
    """Both splits must have the same classes."""
    for where, elsewhere, extra in (
        (train_source, test_source, sorted(set(train) - set(test))),
        (test_source, train_source, sorted(set(test) - set(train))),
    ):
        if extra:
            raise UserError(
                f"classes in {where} that are missing in {elsewhere}: {list_some(extra)}; "
                "both must have the same classes"
            )


def split_by_hash(images: ImageSet, classes: Sequence[str], keys: Iterable[bytes]) -> tuple[ImageSet, ImageSet]:
    """Training and test images: test images are those whose hash is in the lowest fifth, but never none or all of
    a class.

    ``keys``: one per image; an image with the same key is always in the same split.
    """
    shares = np.fromiter(map(_share, keys), dtype=np.float64, count=len(images))
    is_test = shares < TEST_SHARE
    for name, rows in zip(classes, by_class(images.labels, len(classes)), strict=True):
        if len(rows) == 1:
            raise UserError(
                f"class '{name}' has a single image, {images.source.name(int(images.rows[rows[0]]))}; "
                f"it takes two, one to learn from and one to test with"
            )
        is_test[rows[shares[rows].argmin()]] = True
        is_test[rows[shares[rows].argmax()]] = False
    return images.subset(~is_test), images.subset(is_test)


def list_some(names: Sequence[str], limit: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _share(key: bytes) -> float:
    """A number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64


FILE, LABEL = ("file", "path", "image", "filename"), ("label", "class", "category", "name")
"""Accepted names of the two columns of a CSV file."""


class LabelledImages(NamedTuple):
    """Images labelled by position among the names of their classes."""

    images: ImageSet
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Files that cannot be read as images."""
    ignored: tuple[IgnoredFiles, ...] = ()
    """Entries of a folder other than the images of its classes."""

    def resized(self, size: int, channels: int) -> LabelledImages:
        """The same files, read at another size. They are not opened again."""
        images = self.images
        source = images.source
        if not isinstance(source, FileSource):
            raise ValueError("only images in files have another size")
        if (source.size, source.channels) == (size, channels):
            return self
        return self._replace(images=ImageSet.of(source.resized(size, channels), images.rows, images.labels))


def load_labelled(images: Any, labels: Any, size: int | None = None, channels: int | None = None) -> LabelledImages:
    """Images in any form with a class name each; without names, a folder or a CSV file, or one that is loaded already.

    Classes are numbered in order of appearance. Without ``size`` and ``channels`` they are those of the first image.
    """
    if isinstance(images, LabelledImages):
        shape = images.images.shape
        return images.resized(size or shape.size, channels or shape.channels)
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UserError("images need class names: give a list with one for each, or a folder, or a CSV file")
        return load_labelled_files(check_path("the path of images", images, any_name=True), size, channels or 3)
    source = load_images(images, size, channels)
    names = class_names(labels, len(source))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    values = np.array([numbers[name] for name in names], dtype=np.int64)
    return LabelledImages(ImageSet.of(source, np.arange(len(source), dtype=np.int64), values), tuple(numbers))


def load_labelled_files(path: Path, size: int | None = None, channels: int = 3) -> LabelledImages:
    """The images of a folder or of a CSV file, at this size (None: that of the first image)."""
    labelled = _load_table(path, channels) if os.path.isfile(path) else _load_folder(path, channels)
    if size is None:
        with open_picture(labelled.images.name(0)) as first:
            size = natural_size(first)
    return labelled.resized(size, channels)


def _load_folder(path: Path, channels: int) -> LabelledImages:
    if not os.path.isdir(path):
        raise UserError(f"there is no folder and no CSV file {path}")
    listing = list_directory(path)
    require_classes(path, listing.directories)
    labelled = load_class_folders(path, listing.directories, STANDARD, channels)
    if listing.images:  # The user may expect them to have a class.
        stray = IgnoredFiles(str(path), len(listing.images), listing.images[0])
        labelled = labelled._replace(ignored=(stray, *labelled.ignored))
    return labelled


def _load_table(table: Path, channels: int) -> LabelledImages:
    """Paths in the table are relative to it."""
    rows = _rows(table)
    for line, file, _ in rows:
        if not os.path.isfile(table.parent / file):
            raise UserError(f"{table}, line {line}: there is no image file {table.parent / file}")
    files = FileList.of_paths([table.parent / file for _, file, _ in rows])
    bad = find_unreadable(files)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(label for _, _, label in rows))}
    classes = tuple(numbers)
    labels = np.array([numbers[label] for _, _, label in rows], dtype=np.int64)
    good = np.setdiff1d(np.arange(len(files), dtype=np.int64), np.fromiter(bad, dtype=np.int64))
    skipped = tuple(files.path(row) for row in sorted(bad))
    images = ImageSet.of(FileSource(files, STANDARD, channels=channels, skipped=skipped), good, labels[good])
    empty = np.flatnonzero(images.counts(len(classes)) == 0)
    if len(empty):
        raise UserError(f"class '{classes[empty[0]]}' of {table} has no readable image")
    return LabelledImages(images, classes, skipped)


def _rows(table: Path) -> list[tuple[int, str, str]]:
    """Line, file and label of each row."""
    try:
        text = read_bytes(table, TEXT_LIMIT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{table} is not a CSV file in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        lines = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{table}, line {reader.line_num}: it cannot be read as CSV: {error}") from None
    header = lines[0][1] if lines else []
    names = [name.strip().lower() for name in header]
    columns = []
    for wanted in (FILE, LABEL):
        matches = [index for index, name in enumerate(names) if name in wanted]
        if len(matches) != 1:
            raise UserError(
                f"{table} needs a header with one column 'file' and one column 'label'; it has "
                f"{', '.join(map(repr, header)) or 'none'}"
            )
        columns.append(matches[0])
    rows = []
    for line, row in lines[1:]:
        if len(row) != len(header) or not all(row[column].strip() for column in columns):
            raise UserError(f"{table}, line {line}: expected {', '.join(header)}, but it is '{','.join(row)}'")
        label = one_line(f"{table}, line {line}: a label", row[columns[1]])
        rows.append((line, row[columns[0]].strip(), label))
    if not rows:
        raise UserError(f"{table} has no row below its header")
    return rows


_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Directories that hold no class where there are no others beside them; a class may well be called 'train'."""


def require_classes(path: Path, directories: Sequence[str], expected: str = "PATH/CLASS/images") -> None:
    """The directories of a folder must be classes."""
    if not directories:
        raise UserError(f"{path} has no class directories; expected {expected}")
    if {name.lower() for name in directories} <= _SPLITS:
        raise UserError(
            f"the directories in {path} are splits, not classes: {list_some(directories)}; expected {expected}"
        )


CHECKED_FILES = 100_000
"""Files that are opened when a folder is loaded, to leave out unreadable ones; opening more takes too long."""


def load_class_folders(root: Path, classes: Sequence[str], size: int, channels: int = 3) -> LabelledImages:
    """The readable images of these class directories, labelled by position."""
    _require_distinct(root, classes)
    files, ignored = FileList.scan_all(root, classes)
    unreadable = find_unreadable(files) if len(files) <= CHECKED_FILES else {}
    skipped = tuple(files.path(row) for row in unreadable)
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), files.counts())
    readable = np.ones(len(files), dtype=np.bool_)
    readable[list(unreadable)] = False
    rows = np.flatnonzero(readable).astype(np.int64, copy=False)
    images = ImageSet.of(FileSource(files, size, channels=channels, skipped=skipped), rows, labels[rows])
    empty = np.flatnonzero(images.counts(len(classes)) == 0)
    if len(empty):
        directory = root / classes[int(empty[0])]
        lost = [files.name(row) for row in unreadable if labels[row] == empty[0]]
        nested = directory_names(directory)
        reason = f"; unreadable: {list_some(lost)}" if lost else ""
        if nested and not lost:
            reason = f", only directories: {list_some(nested)}"
        raise UserError(f"class '{directory.name}' has no readable image in {directory}{reason}")
    return LabelledImages(images, tuple(map(normalize_class_name, classes)), skipped, ignored)


def _require_distinct(root: Path, classes: Sequence[str]) -> None:
    """Class names must be encodable as text, and distinct in their normal form."""
    forms: set[str] = set()
    for name in classes:
        if not is_text(name):
            raise UserError(f"the name of the class directory {os.fsencode(name)!r} in {root} is not UTF-8; rename it")
        form = one_line(f"the name of a class directory in {root}", name)
        if form in forms:
            raise UserError(f"{root} has two class directories '{form}', of different Unicode form; rename one")
        forms.add(form)
