"""Benchmarks of images on disk: the whole way from files to augmented batches against decoding alone."""

from __future__ import annotations

from collections.abc import Sequence
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
from drcil.data.sources.reader import Reader, batches_together, cut
from drcil.data.sources.shared import forking
from drcil.keys import derive, generator

from .pictures import photographs
from .rows import Measurement, benchmark
from .scene import Scene
from .timing import alternate, seconds_of

WORKERS, BATCH = 2, 128
_ROUNDS = 3
_CACHE = 512 << 20
_SMALL, _LARGE = 64, 224
_TINY_IMAGENET = "imagenet-tiny"


class Decoded(Dataset[int]):
    """Item i decodes the i-th batch of files with Pillow, and gives nothing back but their number."""

    def __init__(self, batches: Sequence[Sequence[str]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> int:
        for path in self.batches[index]:
            with Image.open(path) as picture:
                picture.load()
        return len(self.batches[index])


def against_decoding(paths: Sequence[str], size: int) -> Measurement:
    """Images/s of decoding, random crop and augmentation ÷ those of decoding alone; beside it, with a cache if any."""
    source = FileSource(FileList.of_paths(paths), size)
    rows = np.arange(len(source), dtype=np.int64)
    pieces = cut(rows, BATCH * batches_together(source, BATCH))
    augment = build_augment("auto", folder.SPEC, in_memory=False)
    context = forking()
    sources = [source, through(PictureCache(_CACHE), source)] if context else [source]
    readers = [Reader(ImageSet(one, rows, np.zeros_like(rows)), WORKERS) for one in sources]
    batches = [[source.files.path(row) for row in piece.tolist()] for piece in pieces]
    loader = DataLoader(
        Decoded(batches),
        batch_size=None,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context=context,
    )

    def ours(reader: Reader) -> None:
        for step, pixels in enumerate(reader.read(pieces, derive("bench"))):
            augment(pixels, generator("bench", step))

    def decoding() -> None:
        for _ in loader:
            pass

    works = [partial(seconds_of, partial(ours, reader)) for reader in readers]
    seconds = alternate(_ROUNDS, *works, partial(seconds_of, decoding))
    disk, *cached, alone = (len(paths) / one for one in seconds)
    said = f"{disk:.0f} against {alone:.0f} images/s, {len(paths)} files"
    for cache in cached:
        said += f"; with --cache {cache:.0f}, {cache / alone:.2f} ×"
    return Measurement(disk / alone, said)


def write_photographs(directory: Path, count: int, distinct: int, height: int, width: int, quality: int) -> list[str]:
    """Generated JPEG files; of every distinct picture there are several."""
    pictures = [Image.fromarray(pixels) for pixels in photographs(distinct, height, width)]
    paths = [str(directory / f"{number:05d}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        pictures[number % distinct].save(path, quality=quality)
    return paths


@benchmark(
    "jpeg-small",
    "JPEG files of 64×64: images/s decoded, cropped and augmented ÷ decoded by Pillow alone, two workers",
    target=0.9,
    better="higher",
    unit="×",
)
def jpeg_small(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        paths = sorted(map(str, (scene.directory / _TINY_IMAGENET).glob("*/*/*.JPEG")))
        return against_decoding(paths or write_photographs(Path(directory), 2560, 256, 64, 64, quality=75), _SMALL)


@benchmark(
    "jpeg-large",
    "JPEG files of 500×375: images/s decoded, cropped to 224×224 and augmented ÷ decoded by Pillow alone, two workers",
    target=0.9,
    better="higher",
    unit="×",
)
def jpeg_large(scene: Scene) -> Measurement:
    with TemporaryDirectory() as directory:
        return against_decoding(write_photographs(Path(directory), 768, 24, 375, 500, quality=90), _LARGE)
