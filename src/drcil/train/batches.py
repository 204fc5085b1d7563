"""Which images each step of a stage sees: order, shards, parts, augmentation.

The batch size of a schedule is that of all processes together. Each process computes its shard of the batch that one
process would see, and every loss term counts by its samples in the whole batch. So the gradient is that of the whole
batch for any number of processes. With ``--accumulate`` a process computes its shard in several parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import distributed
from ..data.image_set import Int64, Mask, indices
from ..data.loader import batches_per_chunk, split_batches
from ..errors import UserError
from ..seeding import BatchShard, Draws, KeyPart, derive_seed, generator, numpy_generator
from ..stages import Stage

if TYPE_CHECKING:
    from .engine import TrainingEngine

_LEAST = 2
"""Images that a shard or a part has at least: batch normalisation needs two."""


def is_shared(total: int, size: int) -> bool:
    """Whether ``size`` processes share a batch; one that is too small is computed whole by every process."""
    return size > 1 and total >= _LEAST * size


def shard_batch(total: int, rank: int, size: int) -> slice:
    """Rows of a batch that process ``rank`` computes."""
    return distributed.shard_of(total, rank, size) if is_shared(total, size) else slice(0, total)


def split_shard(total: int, rank: int, size: int, parts: int) -> list[BatchShard]:
    """The at most ``parts`` parts of a process's shard; their number is the same in all processes."""
    fewest = total // size if is_shared(total, size) else total
    parts = max(1, min(parts, fewest // _LEAST))
    rows = np.arange(total, dtype=np.int64)[shard_batch(total, rank, size)]
    if parts == 1 and len(rows) == total:
        return [BatchShard(total)]
    return [BatchShard(total, torch.from_numpy(part)) for part in np.array_split(rows, parts)]


def shard_batches(sizes: Sequence[int], rank: int, size: int) -> Int64:
    """Rows that process ``rank`` computes of several batches that follow one another."""
    rows, start = [], 0
    for total in sizes:
        rows.append(start + np.arange(total, dtype=np.int64)[shard_batch(total, rank, size)])
        start += total
    return np.concatenate(rows)


@dataclass(frozen=True)
class StepPart:
    """Images of a step that go through the net together."""

    images: Tensor
    """Normalised images; their positions, where features are cached."""
    positions: Tensor
    """Where the images are in the stage's data."""
    shard: BatchShard


@dataclass(frozen=True)
class StepInput:
    """What this process computes in one step."""

    parts: list[StepPart]
    positions: Tensor
    """Where the images of the whole batch are in the stage's data."""
    is_shared: bool
    """Whether processes compute different images of the batch."""

    @property
    def total(self) -> int:
        """Images of the batch, of all processes together."""
        return len(self.positions)


class StageBatches:
    """The batches of a stage. All draws of an epoch are keyed by its ``path``."""

    def __init__(self, engine: TrainingEngine, stage: Stage, task: int, cached_features: Tensor | None) -> None:
        self.engine, self.stage, self.task, self.cached_features = engine, stage, task, cached_features
        self.rank, self.size, self.parts = distributed.rank(), distributed.size(), engine.settings.accumulate
        self.reader = engine.inference.reader(stage.data)
        if stage.schedule.batch_size < self.size:
            raise UserError(
                f"stage '{stage.name}' has batches of {stage.schedule.batch_size} images, fewer than the {self.size} "
                f"processes that would share them; use fewer processes or larger batches"
            )

    def split(self, path: tuple[KeyPart, ...]) -> list[Int64]:
        """Positions, in the stage's data, of the images of each batch of an epoch."""
        size = self.stage.schedule.batch_size
        positions = self.stage.sampler(self.stage.data.labels, derive_seed(*path, "order"))
        is_single = len(positions) % size == 1 % size and self._needs_two_images
        if is_single and (size == 1 or len(positions) == 1):
            pixels = self.stage.data.shape.size
            raise UserError(
                f"stage '{self.stage.name}' of task {self.task} cannot train on one image of {pixels} x {pixels} "
                f"pixels at a time, of which the backbone leaves one position: give more images, a larger batch "
                f"size or a larger image size"
            )
        return split_batches(positions, size, join_single=is_single)

    def read(
        self, path: tuple[KeyPart, ...], batches: Sequence[Int64], epoch: int, first_step: int
    ) -> Iterator[StepInput]:
        """The steps of an epoch from ``first_step`` on.

        Crops of files are keyed by their position in the epoch. The rest is augmented several steps together, keyed by
        the first of them: a stage that resumes between them prepares all of them again and skips those it has taken.
        """
        sizes = [len(batch) for batch in batches]
        # Sent to the device once, not with every chunk.
        order = indices(np.concatenate([np.empty(0, dtype=np.int64), *batches]), self.engine.device)
        positions = torch.split(order, sizes)
        if self.cached_features is not None:
            for batch_rows in positions[first_step:]:
                yield self._step(batch_rows[shard_batch(len(batch_rows), self.rank, self.size)], batch_rows)
            return
        stage, batch_size = self.stage, self.stage.schedule.batch_size
        together = batches_per_chunk(stage.data.shape, batch_size)
        starts = range(first_step - first_step % together, len(batches), together)
        key = derive_seed(*path, "view") if stage.augment and self.engine.augmentation.crops_files else None
        rows = [shard_batches(sizes[start : start + together], self.rank, self.size) for start in starts]
        chunks = [
            np.concatenate(batches[start : start + together])[chunk_rows]
            for start, chunk_rows in zip(starts, rows, strict=True)
        ]
        epoch_rows = [start * batch_size + chunk_rows for start, chunk_rows in zip(starts, rows, strict=True)]
        augmented = self._augmented(path, epoch, sum(sizes))
        pixels = self.reader.read(chunks, key, epoch_rows, augmented)
        for start, chunk_rows, positions_in_epoch, chunk in zip(starts, rows, epoch_rows, pixels, strict=True):
            total = sum(sizes[start : start + together])
            selected = None if augmented is None else np.flatnonzero(augmented[positions_in_epoch])
            drawn_for = chunk_rows if selected is None else chunk_rows[selected]
            shard = BatchShard(total, None if len(drawn_for) == total else torch.from_numpy(drawn_for))
            draws = Draws(generator(*path, start, "augment"), shard) if stage.augment else None
            chunk_batches = positions[start : start + together]
            lengths = [
                len(range(len(batch_rows))[shard_batch(len(batch_rows), self.rank, self.size)])
                for batch_rows in chunk_batches
            ]
            views = torch.split(self.engine.augment(chunk, draws, selected), lengths)
            for images, batch_rows in islice(zip(views, chunk_batches, strict=True), max(0, first_step - start), None):
                yield self._step(self.engine.inference.normalised(images), batch_rows)

    def _step(self, images: Tensor, positions: Tensor) -> StepInput:
        """One step, from this process's images and the positions of the whole batch."""
        total = len(positions)
        shards = split_shard(total, self.rank, self.size, self.parts)
        lengths = [len(shard) for shard in shards]
        shard_positions = positions[shard_batch(total, self.rank, self.size)]
        parts = zip(torch.split(images, lengths), torch.split(shard_positions, lengths), shards, strict=True)
        return StepInput([StepPart(*part) for part in parts], positions, is_shared(total, self.size))

    def _augmented(self, path: tuple[KeyPart, ...], epoch: int, images: int) -> Mask | None:
        """Which images of the epoch are augmented, by their position in it; None: all."""
        chance = self.stage.schedule.augmented(epoch)
        return None if chance == 1 else numpy_generator(*path, "augmented").random(images) < chance

    @cached_property
    def _needs_two_images(self) -> bool:
        """Whether the backbone leaves one value per channel of an image: batch normalisation needs two."""
        inference, shape = self.engine.inference, self.stage.data.shape
        blank = torch.zeros(1, shape.channels, shape.size, shape.size, device=self.engine.device)
        with torch.inference_mode():
            features = inference.answer(inference.frozen(self.stage.net), blank).features
        return features.last.numel() <= features.pooled.numel()
