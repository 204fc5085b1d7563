"""Fingerprint of a dataset, to detect changed images when a run resumes.

What is compared, class by class and split by split, wherever the files are:

- files of up to 256 MB in all: their names and contents;
- more than that, such as ImageNet: their names and sizes, and when each was last modified. Times that differ in every
  class are those of a copy and do not count, so that of a copy files that others of equal size replaced go unnoticed;
- images in memory: their pixels, of more than 512 MB an even sample; the checksum, where the loader has verified one;
- pictures in a table on disk: their contents, of about more than 256 MB in a split an even sample;
- images of other kinds, which are read one by one: an even sample.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..files import open_regular, unreadable
from .dataset import Dataset
from .file_source import FileList, FileSource
from .image_set import ImageSet, Int64, Source, by_class
from .source_refs import DatasetRef

_THREADS, _FILES_PER_JOB = 8, 1024
"""Network drives have a high latency, but serve many requests in parallel."""


def file_statuses(files: FileList, rows: Int64) -> tuple[Int64, Int64]:
    """Sizes in bytes of the files at these rows, and when they were modified, in microseconds; links are followed.

    Every file is checked: a directory does not change when the content of a file in it is replaced.
    """

    def look(job: Int64) -> Int64:
        values = []
        for row in job.tolist():
            path = files.path(row)
            try:
                status = os.stat(path)
            except OSError as error:
                raise unreadable(path, error) from None
            values.append((status.st_size, status.st_mtime_ns // 1000))
        return np.array(values, dtype=np.int64).reshape(-1, 2)

    jobs = np.split(rows, range(_FILES_PER_JOB, len(rows), _FILES_PER_JOB))
    with ThreadPoolExecutor(_THREADS) as threads:
        values = np.concatenate(list(threads.map(look, jobs)))
    return values[:, 0].copy(), values[:, 1].copy()


CONTENT_LIMIT = 2**28
"""The maximum number of bytes of files to read: takes less than a second."""
PIXEL_LIMIT = 2**29
"""Bytes of images in memory to hash, per split."""
_SAMPLE = 256
"""Images to hash per split if they are read one by one; at least one of each class."""
_BLOCK = 4096


class SplitFingerprint(BaseModel):
    """The images of one split, by class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    counts: tuple[int, ...]
    digests: tuple[str, ...]
    times: tuple[str, ...] | None = None
    """Digests of when the files were last modified, where there are too many to read them."""


class DatasetFingerprint(BaseModel):
    """The fingerprint of a dataset; ``model_dump(mode="json")`` writes it, ``model_validate`` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Of the dataset, without the path of a folder."""
    shape: str
    classes: tuple[str, ...] = Field(min_length=1)
    train: SplitFingerprint
    test: SplitFingerprint

    def digest(self) -> str:
        """A digest of everything except the modification times, which change when files are copied."""
        content = self.model_dump(mode="json", exclude={"train": {"times"}, "test": {"times"}})
        return _digest([json.dumps(content, sort_keys=True).encode()])


def dataset_fingerprint(dataset: Dataset) -> DatasetFingerprint:
    """Compute the fingerprint of a dataset."""
    sets = (dataset.train, dataset.test)
    statuses = [_statuses(images.source, images.rows) for images in sets]
    blocks = sum(int((-(-sizes // _BLOCK)).sum()) for sizes, _ in statuses)
    train, test = (
        _fingerprint_files(images, len(dataset.classes), sizes, None if blocks * _BLOCK <= CONTENT_LIMIT else times)
        if isinstance(images.source, FileSource)
        else _fingerprint_pixels(images, len(dataset.classes))
        for images, (sizes, times) in zip(sets, statuses, strict=True)
    )
    shape = str(dataset.train.shape)
    return DatasetFingerprint(
        name=dataset.name.partition(":")[0], shape=shape, classes=dataset.classes, train=train, test=test
    )


def describe_difference(before: DatasetFingerprint, now: DatasetFingerprint) -> str | None:
    """The first difference, as text that follows a colon; None if the data are the same."""
    if before.name != now.name:
        return f"the dataset is '{now.name}', not '{before.name}'"
    for changed, others, what in ((before, now, "gone"), (now, before, "new")):
        extra = sorted(set(changed.classes) - set(others.classes))
        if extra:
            return f"class '{extra[0]}' is {what}" + (f", and {len(extra) - 1} more are" if extra[1:] else "")
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
    return [name for name, before, now in zip(classes, old, new, strict=False) if before != now]


def _fingerprint_files(images: ImageSet, classes: int, sizes: Int64, times: Int64 | None) -> SplitFingerprint:
    """By names and contents; with times, by names and sizes."""
    assert isinstance(images.source, FileSource)
    files = images.source.files
    directory_names = [os.fsencode(directory) if files.root else b"" for directory in files.directories]

    def parts(selected: Int64) -> Iterable[bytes]:
        rows = images.rows[selected]
        directories = files.directory_of(rows)
        # With its name the index of a file in its directory: the rows to which a memory refers depend on it.
        indices = rows - files.starts[directories]
        entries = zip(directories.tolist(), files.encoded(rows), indices.tolist(), strict=True)
        names = [b"%s/%s\0%d\0" % (directory_names[directory], name, index) for directory, name, index in entries]
        if times is None:
            contents = (_content(files.path(row)) for row in rows.tolist())
        else:
            contents = (b"%d\0" % size for size in sizes[selected].tolist())
        # In one call: hashing piece by piece takes longer than everything else.
        yield b"".join(chain.from_iterable(zip(names, contents, strict=True)))

    groups = by_class(images.labels, classes)
    return SplitFingerprint(
        counts=tuple(map(len, groups)),
        digests=tuple(_digest(parts(group)) for group in groups),
        times=None if times is None else tuple(_digest([times[group].tobytes()]) for group in groups),
    )


def _fingerprint_pixels(images: ImageSet, classes: int) -> SplitFingerprint:
    source = images.source
    checksum = source.ref.md5 if isinstance(source.ref, DatasetRef) else None
    stored = source.stored_bytes()
    limit = PIXEL_LIMIT // (source.channels * source.size**2) if source.in_memory else _SAMPLE
    limit = max(limit, CONTENT_LIMIT // stored) if stored else limit
    step = max(1, -(-len(images) // max(1, limit)))

    def parts(rows: Int64) -> Iterable[bytes | memoryview]:
        yield rows.tobytes()
        if stored:
            yield from map(source.digest, rows[::step].tolist())
            return
        yield str(checksum).encode() if checksum else source.read(rows[::step]).flatten().numpy().data

    groups = by_class(images.labels, classes)
    return SplitFingerprint(
        counts=tuple(map(len, groups)), digests=tuple(_digest(parts(images.rows[group])) for group in groups)
    )


def _statuses(source: Source, rows: Int64) -> tuple[Int64, Int64]:
    """Sizes and modification times of files; empty if there are no files."""
    if not isinstance(source, FileSource):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return file_statuses(source.files, rows)


def _content(path: str) -> bytes:
    try:
        with open_regular(path, CONTENT_LIMIT) as file:
            return hashlib.blake2b(file.read(), digest_size=16).digest()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
