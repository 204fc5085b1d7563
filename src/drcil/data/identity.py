"""Which images a dataset has, in a form that can be kept: whether they are still those of before, and what differs.

What is compared, class by class and split by split, wherever the files are:

- files of up to 256 MB in all: their names and contents;
- more than that, such as ImageNet: their names and sizes, and when each was last modified. Times that differ in every
  class are those of a copy and do not count, so that of a copy files that others of equal size replaced go unnoticed;
- images in memory: their pixels, of more than 512 MB an even sample; the checksum, where the loader has verified one;
- pictures in a table on disk: their contents, of about more than 256 MB in a split an even sample;
- images of other kinds, which have to be asked for one by one: an even sample.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..reading import open_file, unreadable
from .datasets.dataset import Dataset
from .sources.files import FileSource
from .sources.imageset import ImageSet, ImageShape, Int64, Source, by_class
from .sources.statuses import statuses

CONTENT_LIMIT = 2**28
"""Bytes of files that are read: less than a second."""
PIXEL_LIMIT = 2**29
"""Bytes of images in memory, in each split, that are looked at."""
_SAMPLE = 256
"""Images that are looked at in each split where they are asked for one by one; at least one of each class."""
_BLOCK = 4096


class SplitIdentity(BaseModel):
    """The images of one split, by class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    counts: tuple[int, ...]
    digests: tuple[str, ...]
    times: tuple[str, ...] | None = None
    """Digests of when the files were last modified, where there are too many to read them."""


class DataIdentity(BaseModel):
    """What a dataset consists of; ``model_dump(mode="json")`` is what to keep, ``model_validate`` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Of the dataset, without the path of a folder."""
    shape: str
    classes: tuple[str, ...] = Field(min_length=1)
    train: SplitIdentity
    test: SplitIdentity

    def digest(self) -> str:
        """All of it in one word, but for the times, which change when files are copied."""
        content = self.model_dump(mode="json", exclude={"train": {"times"}, "test": {"times"}})
        return _digest([json.dumps(content, sort_keys=True).encode()])


def data_identity(dataset: Dataset) -> DataIdentity:
    """What the dataset consists of now."""
    sets = (dataset.train, dataset.test)
    statuses = [_statuses(images.source, images.rows) for images in sets]
    blocks = sum(int((-(-sizes // _BLOCK)).sum()) for sizes, _ in statuses)
    train, test = (
        _of_files(images, len(dataset.classes), sizes, None if blocks * _BLOCK <= CONTENT_LIMIT else times)
        if isinstance(images.source, FileSource)
        else _of_pixels(images, len(dataset.classes))
        for images, (sizes, times) in zip(sets, statuses, strict=True)
    )
    shape = str(ImageShape.of(dataset.train.source))
    return DataIdentity(
        name=dataset.name.partition(":")[0], shape=shape, classes=dataset.classes, train=train, test=test
    )


def difference(before: DataIdentity, now: DataIdentity) -> str | None:
    """The first thing in which they differ, to stand after a colon; None if it is the same data."""
    if before.name != now.name:
        return f"the dataset is '{now.name}', not '{before.name}'"
    for changed, others, what in ((before, now, "gone"), (now, before, "new")):
        some = sorted(set(changed.classes) - set(others.classes))
        if some:
            return f"class '{some[0]}' is {what}" + (f", and {len(some) - 1} more are" if some[1:] else "")
    if before.classes != now.classes:
        return "the classes are in another order"
    if before.shape != now.shape:
        return f"the images are {now.shape}, not {before.shape}"
    splits = (("training", before.train, now.train), ("test", before.test, now.test))
    for split, old, new in splits:
        for name, had, has in zip(now.classes, old.counts, new.counts, strict=False):
            if had != has:
                return f"class '{name}' has {has} {split} images, not {had}"
    copied = all(old.times and new.times and not any(map(str.__eq__, old.times, new.times)) for _, old, new in splits)
    for split, old, new in splits:
        changed_classes = _differing(now.classes, old.digests, new.digests)
        if not changed_classes and not copied:
            changed_classes = _differing(now.classes, old.times or (), new.times or ())
        if changed_classes:
            more = f" and {len(changed_classes) - 1} more classes" if changed_classes[1:] else ""
            return f"the {split} images of class '{changed_classes[0]}'{more} have changed"
    return None if before.digest() == now.digest() else "its record is damaged"


def _differing(classes: Sequence[str], old: Sequence[str], new: Sequence[str]) -> list[str]:
    return [name for name, was, is_now in zip(classes, old, new, strict=False) if was != is_now]


def _of_files(images: ImageSet, classes: int, sizes: Int64, times: Int64 | None) -> SplitIdentity:
    """By names and contents; with times, by names and sizes."""
    assert isinstance(images.source, FileSource)
    files = images.source.files
    here = [os.fsencode(directory) if files.root else b"" for directory in files.directories]

    def parts(chosen: Int64) -> Iterable[bytes]:
        rows = images.rows[chosen]
        directories = files.directory_of(rows)
        # Beside its name the place of a file in its directory: rows, which a memory refers to, follow from it.
        places = rows - files.starts[directories]
        entries = zip(directories.tolist(), files.encoded(rows), places.tolist(), strict=True)
        names = [b"%s/%s\0%d\0" % (here[directory], name, place) for directory, name, place in entries]
        if times is None:
            contents = (_content(files.path(row)) for row in rows.tolist())
        else:
            contents = (b"%d\0" % size for size in sizes[chosen].tolist())
        # At once: hashing piece by piece takes longer than all else.
        yield b"".join(chain.from_iterable(zip(names, contents, strict=True)))

    chosen = by_class(images.labels, classes)
    return SplitIdentity(
        counts=tuple(map(len, chosen)),
        digests=tuple(_digest(parts(each)) for each in chosen),
        times=None if times is None else tuple(_digest([times[each].tobytes()]) for each in chosen),
    )


def _of_pixels(images: ImageSet, classes: int) -> SplitIdentity:
    source, checksum = images.source, images.source.describe().get("md5")
    stored = source.stored_bytes()
    taken = PIXEL_LIMIT // (source.channels * source.size**2) if source.in_memory else _SAMPLE
    taken = max(taken, CONTENT_LIMIT // stored) if stored else taken
    step = max(1, -(-len(images) // max(1, taken)))

    def parts(rows: Int64) -> Iterable[bytes | memoryview]:
        yield rows.tobytes()
        if stored:
            yield from map(source.digest, rows[::step].tolist())
            return
        yield str(checksum).encode() if checksum else source.read(rows[::step]).flatten().numpy().data

    chosen = by_class(images.labels, classes)
    return SplitIdentity(
        counts=tuple(map(len, chosen)), digests=tuple(_digest(parts(images.rows[each])) for each in chosen)
    )


def _statuses(source: Source, rows: Int64) -> tuple[Int64, Int64]:
    """Sizes and times of modification of files; none where there are no files."""
    if not isinstance(source, FileSource):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return statuses(source.files, rows)


def _content(path: str) -> bytes:
    try:
        with open_file(path, CONTENT_LIMIT) as file:
            return hashlib.blake2b(file.read(), digest_size=16).digest()
    except (OSError, ValueError) as error:
        raise unreadable(Path(path), error) from None


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
