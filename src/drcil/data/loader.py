"""Reads batches in worker processes, with an optional shared cache of decoded images.

The cache stores the decoder's output, upright and whole, so views cut from it are bit for bit those cut from the
file. Pictures so large that some of their views are decoded at a smaller scale are left on disk.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .. import distributed
from ..errors import UserError
from .decoding import Pixels
from .image_set import CropDraw, ImageSet, ImageShape, Int64, Mask, Source

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext


Bytes = npt.NDArray[np.uint8]
_IN_MEMORY = "/dev/shm"
"""The directory of files in memory, on systems that have one."""


def shared_bytes(size: int) -> Bytes:
    """Zeros in memory shared by all processes of the run on this machine, and by their forks.

    All processes of the run call this at the same time.
    """
    if distributed.size() == 1:
        return _mapped(-1, size)
    handle = _common_file()
    try:
        os.truncate(handle, size)
        return _mapped(handle, size)
    finally:
        os.close(handle)


class SharedCount:
    """A number and a lock, shared by the same processes."""

    def __init__(self) -> None:
        is_single = distributed.size() == 1
        self._alone = (forking() or multiprocessing.get_context()).Value("q", 0) if is_single else None
        self._number = shared_bytes(8).view(np.int64)
        self._handle = -1 if is_single else _common_file()

    @property
    def value(self) -> int:
        return int(self._number[0])

    @value.setter
    def value(self, number: int) -> None:
        self._number[0] = number

    def locked(self) -> AbstractContextManager[Any]:
        """Hold the lock within the block."""
        return self._alone.get_lock() if self._alone is not None else self._locked()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl

        # This lock belongs to the process: it also excludes forked processes.
        fcntl.lockf(self._handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._handle, fcntl.LOCK_UN)


def forking() -> ForkContext | None:
    """The multiprocessing context that forks, so that memory is shared; None if the system cannot fork."""
    # On macOS a forked process may crash in system libraries.
    can_fork = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork") if can_fork else None


def _common_file() -> int:
    """A file without a name that all processes of the run on this machine have open."""
    hosts = distributed.all_gather_object(platform.node())
    first = hosts.index(platform.node())
    path, handle = "", -1
    if distributed.rank() == first:
        handle, path = tempfile.mkstemp(prefix="drcil-", dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None)
    path = distributed.all_gather_object(path)[first]
    if distributed.rank() != first:
        handle = os.open(path, os.O_RDWR)
    # Once all processes have opened it, its name is removed, so that nothing remains when they end.
    distributed.barrier()
    if distributed.rank() == first:
        os.unlink(path)
    return handle


def _mapped(handle: int, size: int) -> Bytes:
    try:
        return np.frombuffer(mmap.mmap(handle, max(1, size)), dtype=np.uint8)[:size]
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(f"cannot allocate a cache of {size} bytes ({error}); use a smaller one") from None


CHUNK_BYTES = 3 << 20
"""Bytes of images that are read and augmented together, where one batch has less: a thousand images of CIFAR."""

PREFETCH = 4
"""Pieces that each worker process reads ahead."""


def split_batches(positions: Int64, size: int, join_single: bool = False) -> list[Int64]:
    """The positions of each batch. The last may be smaller; ``join_single``: one of one image joins that before it."""
    starts = list(range(0, len(positions), size))
    if join_single and len(starts) > 1 and len(positions) - starts[-1] == 1:
        starts.pop()
    return np.split(positions, starts[1:]) if starts else []


def batches_per_chunk(shape: ImageShape, batch_size: int) -> int:
    """How many batches are read and augmented at once: more than one where images are small.

    Augmentation consists of many kernels, whose launch overhead dominates on a batch of small images.
    """
    return max(1, CHUNK_BYTES // (batch_size * shape.channels * shape.size**2))


class BatchReader:
    """Reads from one image set, piece by piece, any number of times.

    Images on disk are decoded by worker processes, which stay until the reader goes: starting them takes as long as
    decoding some hundred small images.
    """

    def __init__(self, images: ImageSet, workers: int, pinned: bool = False, cache: PictureCache | None = None) -> None:
        """``pinned``: decode into memory from which a GPU can copy by itself. ``cache`` stores decoded files; all
        processes of a run then make their readers at the same time.
        """
        self.images, self.cache = images, cache
        self._workers = 0 if images.shape.in_memory else workers
        self._pinned = pinned
        self._requests: list[_Request] = []
        if cache is not None:
            for source in images.sources:
                if not source.in_memory:
                    cache.add_table(source)
        self._loader: DataLoader[Tensor | UserError] | None = None

    def read(
        self,
        pieces: Sequence[Int64],
        key: int | None = None,
        places: Sequence[Int64] | None = None,
        mask: Mask | None = None,
    ) -> Iterator[Tensor]:
        """The images at the positions of each piece, as uint8; with the key of an epoch, random crops of them.

        A crop depends on where in the epoch the image is taken, but not on how the epoch is divided. ``places`` says
        where, by piece; None: one piece follows another, from the first image on. ``mask``: at which places of the
        epoch images are cropped; None: at all of them.
        """
        if places is None:
            ends = np.cumsum([len(piece) for piece in pieces])
            places = [np.arange(end - len(piece), end) for piece, end in zip(pieces, ends.tolist(), strict=True)]
        self._requests[:] = [
            _Request(
                piece, None if key is None else CropDraw(key, positions, None if mask is None else mask[positions])
            )
            for piece, positions in zip(pieces, places, strict=True)
        ]
        if self._workers == 0 or not self._requests:
            for request in self._requests:
                yield self.images.read(request.positions, request.crops, self.cache)
            return
        workers = min(self._workers, len(pieces))
        if self._loader is None or self._loader.num_workers < workers:
            self._loader = self._start(workers)
        for read in self._loader:
            if isinstance(read, UserError):
                try:
                    raise read
                finally:
                    # Else error and frame hold each other until the garbage collector comes; and of workers that it
                    # finds, torch waits five seconds for each.
                    del read
            yield read

    def _start(self, workers: int) -> DataLoader[Tensor | UserError]:
        return DataLoader(
            _Reader(self.images, self.cache),
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context=forking(),
            prefetch_factor=PREFETCH,
            pin_memory=self._pinned,
            # Its own generator: otherwise the loader draws a seed from torch's global one.
            generator=torch.Generator(),
        )


class _Request(NamedTuple):
    """Positions in an image set, and how the images are cropped."""

    positions: Int64
    crops: CropDraw | None


class _Reader(Dataset[Tensor | UserError]):
    """Reads requests in a worker process."""

    def __init__(self, images: ImageSet, cache: PictureCache | None) -> None:
        self.images, self.cache = images, cache

    def __getitem__(self, request: _Request) -> Tensor | UserError:
        try:
            return self.images.read(request.positions, request.crops, self.cache)
        except UserError as error:
            # Returned rather than raised: the loader would wrap it in the traceback of the worker.
            return error


class PictureCache:
    """Decoded pictures up to a budget of bytes: the first that are decoded are kept, until the cache is cleared.

    Its memory is mapped before worker processes are forked, so all of them share it, also those started later.
    """

    def __init__(self, budget: int) -> None:
        """The processes of a run share the pictures; they create, clear and add tables at the same time."""
        self._arena = shared_bytes(budget)
        self._used = SharedCount()
        self._tables: dict[int, tuple[Source, Int64]] = {}

    @property
    def used(self) -> int:
        """The size of the pictures in the cache, in bytes."""
        return self._used.value

    def clear(self) -> None:
        """Remove all pictures; readers made before must not be used any more."""
        # No process reads or writes the cache between the barriers.
        distributed.barrier()
        self._used.value = 0
        self._tables.clear()
        distributed.barrier()

    def add_table(self, source: Source) -> None:
        """Make room for the entries of a source: per row the end of its pixels (0: none), width and height."""
        if id(source) not in self._tables:
            table = shared_bytes(3 * 8 * len(source)).view(np.int64).reshape(-1, 3)
            # With the source, so that its id is not used again.
            self._tables[id(source)] = source, table

    def rows(self, source: Source) -> Int64:
        """The rows of a source whose pictures are in the cache."""
        return np.flatnonzero(self._tables[id(source)][1][:, 0])

    def find(self, source: Source, row: int) -> Pixels | None:
        table = self._tables[id(source)][1]
        with self._used.locked():
            end, width, height = table[row].tolist()
        if not end:
            return None
        return self._arena[end - width * height * source.channels : end].reshape(height, width, source.channels)

    def keep(self, source: Source, row: int, pixels: Pixels) -> None:
        """Store a picture, if there is room for it."""
        with self._used.locked():
            start, end = self._used.value, self._used.value + pixels.nbytes
            if end > len(self._arena):
                return
            self._used.value = end
        self._arena[start:end] = pixels.reshape(-1)
        height, width, _ = pixels.shape
        # The lock again, so that a process that sees the entry sees the pixels too.
        with self._used.locked():
            self._tables[id(source)][1][row] = end, width, height


def require_forked(workers: int) -> None:
    """Processes share the cache by being forked from one that has it."""
    if workers and forking() is None:
        raise UserError("--cache cannot be shared with worker processes on this system; use --workers 0 with it")
