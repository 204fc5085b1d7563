"""Images with class names as people have them: lists, a folder with a directory per class, or a CSV with a row each."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..arguments import path as given_path
from ..errors import UserError
from ..reading import TEXT_LIMIT, read_bytes
from .datasets.folder import image_set, require_classes
from .labels import class_names, normal, one_line
from .own import images_from
from .sources.decode import STANDARD
from .sources.filelist import FileList, directory_names, image_names, other_names
from .sources.files import FileSource, damaged
from .sources.imageset import ImageSet

FILE, LABEL = ("file", "path", "image", "filename"), ("label", "class", "category", "name")
"""What the two columns of a CSV may be called."""


class Labelled(NamedTuple):
    """Images labelled by position among the names of their classes."""

    images: ImageSet
    classes: tuple[str, ...]
    skipped: tuple[str, ...]
    """Files that cannot be read as images."""
    ignored: tuple[tuple[str, int, str], ...] = ()
    """Directories with things in them that were not looked at: how many, and the name of one."""


def named_images(images: Any, labels: Any, size: int | None = None, channels: int | None = None) -> Labelled:
    """Images of any form with a class name each; without names, the path of a folder or of a CSV.

    Classes are numbered in order of appearance. Without ``size`` and ``channels`` the first image says them.
    """
    if labels is None:
        if not isinstance(images, str | os.PathLike):
            raise UserError("images need class names: give a list with one for each, or a folder, or a CSV file")
        place = given_path("the path of images", images, any_name=True)
        return labelled(place, size or _first_size(place), channels or 3)
    source = images_from(images, size, channels)
    names = class_names(labels, len(source))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    everything = np.arange(len(source), dtype=np.int64)
    own = np.array([numbers[name] for name in names], dtype=np.int64)
    return Labelled(ImageSet(source, everything, own), tuple(numbers), ())


def _first_size(place: Path) -> int:
    """The size that the first image of a folder or of a CSV asks for."""
    found = labelled(place, STANDARD).images
    assert isinstance(found.source, FileSource)
    return images_from(found.source.name(int(found.rows[0]))).size


def labelled(place: Path, size: int, channels: int = 3) -> Labelled:
    """The images of a folder or of a CSV, to be seen in this size."""
    return _of_table(place, size, channels) if os.path.isfile(place) else _of_folder(place, size, channels)


def _of_folder(place: Path, size: int, channels: int) -> Labelled:
    if not os.path.isdir(place):
        raise UserError(f"there is no folder and no CSV file {place}")
    classes = directory_names(place)
    require_classes(place, classes)
    images = image_set(place, classes, size, channels)
    assert isinstance(images.source, FileSource)
    return Labelled(images, tuple(map(normal, classes)), images.source.skipped, tuple(_ignored(place, classes)))


def _ignored(place: Path, classes: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """What people may have meant to be images: beside the class directories, or in them by another name."""
    for directory, others in (
        (place, image_names(place)),
        *((place / name, other_names(place / name)) for name in classes),
    ):
        if others:
            yield str(directory), len(others), others[0]


def _of_table(table: Path, size: int, channels: int) -> Labelled:
    """Paths in the table are relative to it."""
    rows = _rows(table)
    for line, file, _ in rows:
        if not os.path.isfile(table.parent / file):
            raise UserError(f"{table}, line {line}: there is no image file {table.parent / file}")
    files = FileList.of_paths([table.parent / file for _, file, _ in rows])
    bad = damaged(files)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(label for _, _, label in rows))}
    classes = tuple(numbers)
    labels = np.array([numbers[label] for _, _, label in rows], dtype=np.int64)
    good = np.setdiff1d(np.arange(len(files), dtype=np.int64), np.fromiter(bad, dtype=np.int64))
    skipped = tuple(files.path(row) for row in sorted(bad))
    images = ImageSet(FileSource(files, size, channels=channels, skipped=skipped), good, labels[good])
    empty = np.flatnonzero(images.counts(len(classes)) == 0)
    if len(empty):
        raise UserError(f"class '{classes[empty[0]]}' of {table} has no readable image")
    return Labelled(images, classes, skipped)


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
        found = [place for place, name in enumerate(names) if name in wanted]
        if len(found) != 1:
            raise UserError(
                f"{table} needs a header with one column 'file' and one column 'label'; it has "
                f"{', '.join(map(repr, header)) or 'none'}"
            )
        columns.append(found[0])
    rows = []
    for line, row in lines[1:]:
        if len(row) != len(header) or not all(row[column].strip() for column in columns):
            raise UserError(f"{table}, line {line}: expected {', '.join(header)}, but it is '{','.join(row)}'")
        label = one_line(f"{table}, line {line}: a label", row[columns[1]])
        rows.append((line, row[columns[0]].strip(), label))
    if not rows:
        raise UserError(f"{table} has no row below its header")
    return rows
