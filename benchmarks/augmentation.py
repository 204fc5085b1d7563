"""The benchmark of augmentation alone: whole batches against image by image, on one core."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from drcil.data.augment import build_augment
from drcil.data.sources.reader import batches_together, cut
from drcil.keys import generator

from .pillow import augmented, deal
from .rows import Measurement, benchmark
from .scene import Scene
from .timing import alternate, seconds_of

_BATCH, _IMAGES, _ROUNDS = 128, 2048, 3


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
def augment_speed(scene: Scene) -> Measurement:
    spec, images = scene.dataset.spec, scene.dataset.train
    # As many at once as the engine takes.
    together = _BATCH * batches_together(images.source, _BATCH)
    batches = [images.source.read(rows) for rows in cut(images.rows[:_IMAGES], together)]
    arrays = [pixels.numpy() for batch in batches for pixels in batch.permute(0, 2, 3, 1).contiguous()]
    augment = build_augment("auto", spec, in_memory=True)

    def ours() -> None:
        for number, batch in enumerate(batches):
            augment(batch, generator("bench", number))

    def one_by_one() -> None:
        draws = random.Random(0)
        for pixels in arrays:
            augmented(pixels, deal(draws, len(pixels), spec.padding), spec.padding)

    with one_thread():
        batched, single = alternate(_ROUNDS, lambda: seconds_of(ours), lambda: seconds_of(one_by_one))
    count = len(arrays)
    return Measurement(single / batched, f"{count / batched:.0f} against {count / single:.0f} images/s")
