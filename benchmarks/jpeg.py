"""Benchmarks of images on disk: from files to crops and to augmented batches, against Pillow, and what it holds."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from drcil.data.augment import build_augment
from drcil.data.datasets import folder
from drcil.data.sources.cache import PictureCache, through
from drcil.data.sources.filelist import FileList
from drcil.data.sources.files import FileSource
from drcil.data.sources.imageset import ImageSet
from drcil.data.sources.reader import PREFETCH, Reader, batches_together, cut
from drcil.data.sources.shared import forking
from drcil.errors import UserError
from drcil.keys import derive, generator

from .pictures import photographs
from .pillow import photograph
from .rows import Measurement, benchmark
from .scene import Scene
from .timing import Timed, alternate, seconds_of

WORKERS, BATCH = 2, 128
_ROUNDS = 3
_CACHE = 512 << 20
_SMALL, _LARGE = 64, 224
_SHARED = Path("/proc/meminfo")
_TINY_IMAGENET = "imagenet-tiny"


class Pictures(Dataset[int]):
    """Item i decodes the i-th batch of files with Pillow, makes a view of each if asked, and gives their number."""

    def __init__(self, batches: Sequence[Sequence[str]], size: int | None = None) -> None:
        """``size``: of augmented views; None: nothing is done with what is decoded."""
        self.batches, self.size = batches, size

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> int:
        draws = random.Random(index)
        for path in self.batches[index]:
            with Image.open(path) as picture:
                picture.load()
                if self.size is not None:
                    photograph(picture, self.size, draws)
        return len(self.batches[index])


class Files:
    """JPEG files, read in batches by two workers: by drcil, and by Pillow."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self.paths, self.size = paths, size
        self.source = FileSource(FileList.of_paths(paths), size)
        self.rows = np.arange(len(self.source), dtype=np.int64)
        self.pieces = cut(self.rows, BATCH * batches_together(self.source, BATCH))
        self.augment = build_augment("auto", folder.SPEC, in_memory=False)

    def reading(self, augmented: bool, cache: PictureCache | None = None) -> Timed:
        """An epoch of random crops; augmented if asked."""
        source = through(cache, self.source) if cache else self.source
        reader = Reader(ImageSet(source, self.rows, np.zeros_like(self.rows)), WORKERS)

        def epoch() -> None:
            for step, pixels in enumerate(reader.read(self.pieces, derive("bench"))):
                if augmented:
                    self.augment(pixels, generator("bench", step))

        return partial(seconds_of, epoch)

    def by_pillow(self, augmented: bool) -> Timed:
        """The same by Pillow, whose views are left in the workers; without augmentation, decoding alone."""
        batches = [[self.source.files.path(row) for row in piece.tolist()] for piece in self.pieces]
        loader = DataLoader(
            Pictures(batches, self.size if augmented else None),
            batch_size=None,
            num_workers=WORKERS,
            persistent_workers=True,
            multiprocessing_context=forking(),
            prefetch_factor=PREFETCH,
        )
        return partial(seconds_of, lambda: sum(loader))

    def compared(self, augmented: bool) -> Measurement:
        """Images/s of drcil ÷ those of Pillow; beside it, with a cache if any."""
        caches = [PictureCache(_CACHE)] if forking() and augmented else []
        works = [self.reading(augmented), *(self.reading(augmented, cache) for cache in caches)]
        disk, *cached, pillow = alternate(_ROUNDS, *works, self.by_pillow(augmented))
        count = len(self.paths)
        said = f"{count / disk:.0f} against {count / pillow:.0f} images/s, {count} files"
        for one in cached:
            said += f"; with --cache {count / one:.0f}, {pillow / one:.2f} ×"
        return Measurement(pillow / disk, said)


def write_photographs(directory: Path, count: int, distinct: int, height: int, width: int, quality: int) -> list[str]:
    """Generated JPEG files; of every distinct picture there are several."""
    pictures = [Image.fromarray(pixels) for pixels in photographs(distinct, height, width)]
    paths = [str(directory / f"{number:05d}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        pictures[number % distinct].save(path, quality=quality)
    return paths


def small_files(scene: Scene, directory: Path) -> Files:
    """Files of 64×64: Tiny ImageNet's, if they are there."""
    paths = sorted(map(str, (scene.directory / _TINY_IMAGENET).glob("*/*/*.JPEG")))
    return Files(paths or write_photographs(directory, 2560, 256, 64, 64, quality=75), _SMALL)


def large_files(directory: Path) -> Files:
    """Files of 500×375."""
    return Files(write_photographs(directory, 768, 24, 375, 500, quality=90), _LARGE)


@benchmark(
    "read-small",
    "JPEG files of 64×64: images/s decoded and cropped ÷ decoded by Pillow alone, two workers",
    target=0.6,
    better="higher",
    unit="×",
)
def read_small(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        return small_files(scene, Path(directory)).compared(augmented=False)


@benchmark(
    "read-large",
    "JPEG files of 500×375: images/s decoded and cropped to 224×224 ÷ decoded by Pillow alone, two workers",
    target=1.0,
    better="higher",
    unit="×",
)
def read_large(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        return large_files(Path(directory)).compared(augmented=False)


@benchmark(
    "views-small",
    "JPEG files of 64×64: images/s decoded, cropped and augmented ÷ the same by Pillow, two workers",
    target=3.0,
    better="higher",
    unit="×",
)
def views_small(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        return small_files(scene, Path(directory)).compared(augmented=True)


@benchmark(
    "views-large",
    "JPEG files of 500×375: images/s decoded, cropped to 224×224 and augmented ÷ the same by Pillow, two workers",
    target=3.0,
    better="higher",
    unit="×",
)
def views_large(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        return large_files(Path(directory)).compared(augmented=True)


@benchmark(
    "epoch-memory",
    "most memory held while an epoch of 48 batches of JPEG files is read ÷ that of the 9 batches that are prefetched",
    target=1.25,
    better="lower",
    unit="×",
)
def epoch_memory(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        files = Files(write_photographs(Path(directory), 1536, 24, 96, 96, quality=75), _LARGE)
        reader = Reader(ImageSet(files.source, files.rows, np.zeros_like(files.rows)), WORKERS)
        pieces = cut(files.rows, 32)
        # Once through a few, so that workers are there and have what they need.
        for _ in reader.read(pieces[:4], derive("bench")):
            pass
        before = held_memory()
        most, batch = before, 0
        for pixels in reader.read(pieces, derive("bench")):
            most, batch = max(most, held_memory()), pixels.nbytes
    prefetched = batch * (PREFETCH * WORKERS + 1)
    said = f"{(most - before) / 2**20:.0f} MiB of an epoch of {batch * len(pieces) / 2**20:.0f}"
    return Measurement((most - before) / prefetched, said)


def held_memory() -> int:
    """Bytes that this process and its workers have for themselves, and those of shared memory on the machine."""
    if not _SHARED.exists():
        raise UserError(f"memory is read from {_SHARED}, which this system does not have")
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    own = [_kibibytes(Path(f"/proc/{pid}/status"), "RssAnon") for pid in pids]
    return 1024 * (sum(own) + _kibibytes(_SHARED, "Shmem"))


def _kibibytes(file: Path, name: str) -> int:
    """The entry of this name; 0 for a process that is gone."""
    with suppress(FileNotFoundError):
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
    return 0
