"""Benchmarks of data: augmentation, files to crops and augmented batches, memory of an epoch, listing."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from drcil.data.augment import build_augment
from drcil.data.dataset import PHOTO_SPEC
from drcil.data.file_source import FileList, FileSource, directory_names
from drcil.data.image_set import ImageSet
from drcil.data.loader import PREFETCH, BatchReader, PictureCache, batches_per_chunk, forking, split_batches
from drcil.errors import UserError
from drcil.seeding import derive_seed, generator

from . import Measurement, Timed, alternate, benchmark, seconds_of
from .references import augmented, draw_choice, photograph
from .workload import Workload, photographs

_WORKERS, _BATCH, _IMAGES, _ROUNDS = 2, 128, 2048, 3
_CACHE_BYTES = 512 << 20
_SMALL, _LARGE = 64, 224
_MEMINFO = Path("/proc/meminfo")
_TINY_IMAGENET = "imagenet-tiny"


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@benchmark(
    "augment-speed",
    "crop, flip, brightness, AutoAugment and cutout of 32×32 images on one core: images/s, ours ÷ Pillow",
    target=10.0,
    better="higher",
    unit="×",
)
def augment_speed(workload: Workload) -> Measurement:
    spec, images = workload.dataset.spec, workload.dataset.train
    # As many images at a time as in the engine.
    together = _BATCH * batches_per_chunk(images.shape, _BATCH)
    batches = [images.source.read(rows) for rows in split_batches(images.rows[:_IMAGES], together)]
    arrays = [pixels.numpy() for batch in batches for pixels in batch.permute(0, 2, 3, 1).contiguous()]
    augment = build_augment("auto", spec, in_memory=True)

    def ours() -> None:
        for number, batch in enumerate(batches):
            augment(batch, generator("bench", number))

    def one_by_one() -> None:
        draws = random.Random(0)
        for pixels in arrays:
            augmented(pixels, draw_choice(draws, len(pixels), spec.padding), spec.padding)

    with one_thread():
        batched, single = alternate(_ROUNDS, lambda: seconds_of(ours), lambda: seconds_of(one_by_one))
    count = len(arrays)
    return Measurement(single / batched, f"{count / batched:.0f} against {count / single:.0f} images/s")


class Pictures(Dataset[int]):
    """Item i decodes the i-th batch of files with Pillow, optionally makes views, and is the number of files."""

    def __init__(self, batches: Sequence[Sequence[str]], size: int | None = None) -> None:
        """``size``: of augmented views; None: files are decoded only."""
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
        self.pieces = split_batches(self.rows, _BATCH * batches_per_chunk(self.source.shape, _BATCH))
        self.augment = build_augment("auto", PHOTO_SPEC, in_memory=False)

    def reading(self, augmented: bool, cache: PictureCache | None = None) -> Timed:
        """An epoch of random crops, optionally augmented."""
        reader = BatchReader(ImageSet.unlabelled(self.source), _WORKERS, cache=cache)

        def epoch() -> None:
            for step, pixels in enumerate(reader.read(self.pieces, derive_seed("bench"))):
                if augmented:
                    self.augment(pixels, generator("bench", step))

        return partial(seconds_of, epoch)

    def by_pillow(self, augmented: bool) -> Timed:
        """The same by Pillow, whose views stay in the workers; without augmentation, decoding only."""
        batches = [[self.source.files.path(row) for row in piece.tolist()] for piece in self.pieces]
        loader = DataLoader(
            Pictures(batches, self.size if augmented else None),
            batch_size=None,
            num_workers=_WORKERS,
            persistent_workers=True,
            multiprocessing_context=forking(),
            prefetch_factor=PREFETCH,
        )
        return partial(seconds_of, lambda: sum(loader))

    def compare(self, augmented: bool) -> Measurement:
        """Images/s of drcil ÷ those of Pillow; the detail also has the ratio with a cache."""
        caches = [PictureCache(_CACHE_BYTES)] if forking() and augmented else []
        works = [self.reading(augmented), *(self.reading(augmented, cache) for cache in caches)]
        disk, *cached, pillow = alternate(_ROUNDS, *works, self.by_pillow(augmented))
        count = len(self.paths)
        detail = f"{count / disk:.0f} against {count / pillow:.0f} images/s, {count} files"
        for seconds in cached:
            detail += f"; with --cache {count / seconds:.0f}, {pillow / seconds:.2f} ×"
        return Measurement(pillow / disk, detail)


def write_photographs(directory: Path, count: int, distinct: int, height: int, width: int, quality: int) -> list[str]:
    """Generated JPEG files; every distinct image is written several times."""
    pictures = [Image.fromarray(pixels) for pixels in photographs(distinct, height, width)]
    paths = [str(directory / f"{number:05d}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        pictures[number % distinct].save(path, quality=quality)
    return paths


def small_files(workload: Workload, directory: Path) -> Files:
    """Files of 64×64: those of Tiny ImageNet if the data directory has them."""
    paths = sorted(map(str, (workload.directory / _TINY_IMAGENET).glob("*/*/*.JPEG")))
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
def read_small(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        return small_files(workload, Path(directory)).compare(augmented=False)


@benchmark(
    "read-large",
    "JPEG files of 500×375: images/s decoded and cropped to 224×224 ÷ decoded by Pillow alone, two workers",
    target=1.0,
    better="higher",
    unit="×",
)
def read_large(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        return large_files(Path(directory)).compare(augmented=False)


@benchmark(
    "views-small",
    "JPEG files of 64×64: images/s decoded, cropped and augmented ÷ the same by Pillow, two workers",
    target=3.0,
    better="higher",
    unit="×",
)
def views_small(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        return small_files(workload, Path(directory)).compare(augmented=True)


@benchmark(
    "views-large",
    "JPEG files of 500×375: images/s decoded, cropped to 224×224 and augmented ÷ the same by Pillow, two workers",
    target=3.0,
    better="higher",
    unit="×",
)
def views_large(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        return large_files(Path(directory)).compare(augmented=True)


@benchmark(
    "epoch-memory",
    "most memory held while an epoch of 48 batches of JPEG files is read ÷ that of the 9 batches that are prefetched",
    target=1.25,
    better="lower",
    unit="×",
)
def epoch_memory(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        files = Files(write_photographs(Path(directory), 1536, 24, 96, 96, quality=75), _LARGE)
        reader = BatchReader(ImageSet.unlabelled(files.source), _WORKERS)
        pieces = split_batches(files.rows, 32)
        # A few batches first, so that the workers are started and warm.
        for _ in reader.read(pieces[:4], derive_seed("bench")):
            pass
        before = held_memory()
        most, batch = before, 0
        for pixels in reader.read(pieces, derive_seed("bench")):
            most, batch = max(most, held_memory()), pixels.nbytes
    prefetched = batch * (PREFETCH * _WORKERS + 1)
    detail = f"{(most - before) / 2**20:.0f} MiB of an epoch of {batch * len(pieces) / 2**20:.0f}"
    return Measurement((most - before) / prefetched, detail)


def held_memory() -> int:
    """Private bytes of this process and its workers, and shared memory of the machine."""
    if not _MEMINFO.exists():
        raise UserError(f"memory is read from {_MEMINFO}, which this system does not have")
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    private = [_kibibytes(Path(f"/proc/{pid}/status"), "RssAnon") for pid in pids]
    return 1024 * (sum(private) + _kibibytes(_MEMINFO, "Shmem"))


def _kibibytes(file: Path, name: str) -> int:
    """The entry of this name; 0 for a process that has ended."""
    with suppress(FileNotFoundError):
        lines = file.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
    return 0


_DIRECTORIES, _FILES = 100, 1300


def make_tree(root: Path) -> None:
    """Empty files with names like ImageNet's: 130,000, a tenth of ImageNet."""
    for number in range(_DIRECTORIES):
        directory = root / f"n{number:08d}"
        directory.mkdir(parents=True)
        for file in range(_FILES):
            os.close(os.open(directory / f"n{number:08d}_{file}.JPEG", os.O_CREAT | os.O_WRONLY))


@benchmark("listing-seconds", "130,000 files listed", target=1.0, better="lower", unit="s")
def listing_seconds(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        make_tree(Path(directory))
        classes = directory_names(Path(directory))
        seconds = seconds_of(lambda: FileList.scan(directory, classes))
        return Measurement(seconds, f"{len(FileList.scan(directory, classes))} files")
