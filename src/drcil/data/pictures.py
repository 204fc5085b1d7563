"""Any number of picture files, one small batch after the other: found, decoded, and those that cannot be read told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from .sources.decode import Pixels
from .sources.filelist import FileList, directory_names, image_names
from .sources.files import FileSource
from .sources.imageset import ImageShape
from .sources.opening import UNREADABLE, reason


class Unreadable(NamedTuple):
    """A file that is no image, or a damaged one."""

    file: str
    why: str


def picture_files(place: Path) -> Iterator[Path]:
    """The file, or all image files below the directory, sorted within each; hidden ones are left out.

    A directory that leads back to one that it lies in is not entered again.
    """
    if not os.path.isdir(place):
        yield place
        return
    yield from _below(place, frozenset())


def _below(directory: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in above:
        return
    yield from (directory / name for name in image_names(directory))
    for name in directory_names(directory):
        yield from _below(directory / name, above | {real})


def decoded(
    paths: Iterable[str | os.PathLike[str]], shape: ImageShape, threads: int, batch: int
) -> Iterator[tuple[list[str], list[Pixels | str]]]:
    """Batches of files: their names, and the test view of each, or why it cannot be read.

    The next batch is decoded while the caller works on this one.
    """

    def seen(path: str) -> Pixels | str:
        source = FileSource(FileList.of_paths([path]), shape.size, channels=shape.channels)
        try:
            return source.view(0, None)
        except UNREADABLE as error:
            return reason(error)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        left = (os.fspath(path) for path in paths)
        names = list(islice(left, batch))
        views = [pool.submit(seen, name) for name in names]
        while names:
            following = list(islice(left, batch))
            begun = [pool.submit(seen, name) for name in following]
            yield names, [view.result() for view in views]
            names, views = following, begun
