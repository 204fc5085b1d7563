"""Random generators keyed by seed, task, stage, epoch, step and purpose.

A key is a 63-bit number derived from a path of names and numbers, such as
``derive_seed(seed, "task", 3, "fusion", epoch, step, "augment")``. Two runs draw the same numbers for the same path,
whatever they did before: with other workers, after an evaluation, or after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KeyPart = int | str


def derive_seed(*path: KeyPart) -> int:
    """The seed of a path. Unequal paths give unequal seeds: ("a", 1) is not ("a1",) nor ("a", "1")."""
    text = "/".join(f"{type(part).__name__}:{_escaped(part)}" for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big") >> 1


def _escaped(part: KeyPart) -> str:
    return str(part).replace("\\", "\\\\").replace("/", "\\/")


def generator(*path: KeyPart) -> torch.Generator:
    """A torch generator on the CPU for this path. Draws are moved to other devices, so devices agree."""
    return torch.Generator().manual_seed(derive_seed(*path))


def numpy_generator(*path: KeyPart) -> np.random.Generator:
    """A numpy generator for this path."""
    return np.random.default_rng(derive_seed(*path))


def set_torch_seed(*path: KeyPart) -> None:
    """Seed torch's global generators, the CPU's and those of devices in use; only within ``seeded_torch``.

    Two hundred times faster than ``torch.manual_seed``, which records a traceback for devices not in use.
    """
    key = derive_seed(*path)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(key)


@contextmanager
def seeded_torch(*path: KeyPart) -> Iterator[None]:
    """Within the block torch's global generators are seeded by this path; afterwards they have their previous state.

    For draws that cannot take another generator: layer initialisation, dropout.
    """
    # Reading the state of a GPU would initialise it, also if it is not used.
    in_use = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    before = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=in_use):
        set_torch_seed(*path)
        try:
            yield
        finally:
            if before is not None:
                torch.mps.set_rng_state(before)


@dataclass(frozen=True)
class BatchShard:
    """Images of a batch that this process computes, where several processes share the batch.

    Values are drawn for all images, then selected: so every image gets the values that it would get in one process.
    """

    total: int
    """Images of the batch."""
    rows: Tensor | None = None
    """Where in the batch the images of this process are; None: all of them."""

    def __len__(self) -> int:
        return self.total if self.rows is None else len(self.rows)

    def taken(self, drawn: Tensor, dim: int = 0) -> Tensor:
        """Values for the images of this process, from values for all images along one dimension."""
        return drawn if self.rows is None else drawn.index_select(dim, self.rows.to(drawn.device))


@dataclass(frozen=True)
class Draws:
    """A generator for augmentation, and the images that it draws for.

    A step draws a value for each of ``count`` images and then selects those for its images:
    ``draws.taken(torch.rand(draws.count, generator=draws.generator))``.
    """

    generator: torch.Generator
    shard: BatchShard

    @property
    def count(self) -> int:
        """Number of images to draw for."""
        return self.shard.total

    def taken(self, drawn: Tensor, dim: int = 0) -> Tensor:
        """Values for the images of this process, from values for all images."""
        return self.shard.taken(drawn, dim)


_BATCH: ContextVar[BatchShard | None] = ContextVar("batch", default=None)


@contextmanager
def batch_shard(shard: BatchShard) -> Iterator[None]:
    """Within the block nets see these images of a batch; ``bernoulli_by_image`` then draws for the whole batch."""
    token = _BATCH.set(shard)
    try:
        yield
    finally:
        _BATCH.reset(token)


def bernoulli_by_image(rows: int, probability: float, like: Tensor) -> Tensor:
    """Random zeros and ones for these rows, an equal number for each image of the batch, as a tensor like ``like``.

    From torch's global generator, which is seeded by the step. Nets draw with this function, so that an image gets the
    same values for any number of processes.
    """
    shard = _BATCH.get()
    if shard is None or shard.rows is None:
        return like.new_empty(rows).bernoulli_(probability)
    rows_per_image = rows // len(shard)
    return shard.taken(like.new_empty(shard.total, rows_per_image).bernoulli_(probability)).flatten()
