"""Keyed randomness: every random choice is a function of what it is for, never of what ran before it.

A key is a 63-bit number derived from a path of names and numbers, such as
``derive(seed, "task", 3, "fusion", epoch, step, "augment")``. Two runs that reach the same place draw the same
numbers there, however they got there: with other workers, after an evaluation in between, or after a kill.
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


def derive(*path: KeyPart) -> int:
    """The key of a place in the run. Unequal paths give unequal keys: ("a", 1) is not ("a1",) nor ("a", "1")."""
    text = "/".join(f"{type(part).__name__}:{_escaped(part)}" for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big") >> 1


def _escaped(part: KeyPart) -> str:
    return str(part).replace("\\", "\\\\").replace("/", "\\/")


def generator(*path: KeyPart) -> torch.Generator:
    """A torch generator on the CPU for this place. Choices are drawn there and moved, so devices agree."""
    return torch.Generator().manual_seed(derive(*path))


def numpy_generator(*path: KeyPart) -> np.random.Generator:
    """A numpy generator for this place."""
    return np.random.default_rng(derive(*path))


def seed_torch(*path: KeyPart) -> None:
    """Key torch's global generators, the CPU's and those of devices in use, to this place; only within `randomness`.

    Two hundred times faster than ``torch.manual_seed``, which records a traceback for devices not in use.
    """
    key = derive(*path)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(key)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(key)


@contextmanager
def randomness(*path: KeyPart) -> Iterator[None]:
    """Within the block torch's global generators are keyed to this place; afterwards they are as they were before.

    For what draws from a global generator and cannot be handed another: layer initialisation, dropout.
    """
    # Asking for the state of a GPU would set it up, also for those who compute elsewhere.
    in_use = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    before = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=in_use):
        seed_torch(*path)
        try:
            yield
        finally:
            if before is not None:
                torch.mps.set_rng_state(before)


@dataclass(frozen=True)
class Share:
    """Which images of a batch are looked at here, where several processes look at one batch together.

    Values are drawn for all images, and those of these are taken: so every image gets what it would get in one process.
    """

    total: int
    """Images of the batch."""
    own: Tensor | None = None
    """Where in the batch those are that are looked at here; None: all of them."""

    def __len__(self) -> int:
        return self.total if self.own is None else len(self.own)

    def taken(self, drawn: Tensor, dim: int = 0) -> Tensor:
        """Of values that were drawn for all images, along one dimension, those for the images at hand."""
        return drawn if self.own is None else drawn.index_select(dim, self.own.to(drawn.device))


@dataclass(frozen=True)
class Draws:
    """Where augmentation draws from: a generator, and the images that it draws for.

    A step draws a value for each of ``count`` images and then takes those for the images it was given:
    ``draws.taken(torch.rand(draws.count, generator=draws.generator))``.
    """

    generator: torch.Generator
    share: Share

    @property
    def count(self) -> int:
        """How many images to draw for."""
        return self.share.total

    def taken(self, drawn: Tensor, dim: int = 0) -> Tensor:
        """Of what was drawn for all images, what is for those at hand."""
        return self.share.taken(drawn, dim)


_BATCH: ContextVar[Share | None] = ContextVar("batch", default=None)


@contextmanager
def batch_share(share: Share) -> Iterator[None]:
    """Within the block nets see these images of a batch; ``bernoulli_by_image`` then draws for the whole batch."""
    token = _BATCH.set(share)
    try:
        yield
    finally:
        _BATCH.reset(token)


def bernoulli_by_image(rows: int, probability: float, like: Tensor) -> Tensor:
    """Zeros and ones for so many rows, an equal number for each image of the batch, as a tensor like another.

    From torch's global generator, keyed by the step. A net that draws by itself draws like this, so that an image meets
    the same chance however many processes share its batch.
    """
    share = _BATCH.get()
    if share is None or share.own is None:
        return like.new_empty(rows).bernoulli_(probability)
    each = rows // len(share)
    return share.taken(like.new_empty(share.total, each).bernoulli_(probability)).flatten()
