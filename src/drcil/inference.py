"""Images through nets without gradient: device, precision, ranking, feature bank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from . import distributed
from .data.augment import normalise
from .data.image_set import ImageSet, Int64, Source
from .data.loader import BatchReader, PictureCache, split_batches
from .errors import UserError, check_choice, check_int
from .nets.net import Output, Readout, frozen_copy
from .process import require_bf16
from .settings import BATCH, WORKERS, DeviceName, Precision


def find_device(name: str) -> torch.device:
    """The device of this name (``auto``: a GPU if there is one), or a sentence about what this machine lacks."""
    check_choice("device", name, get_args(DeviceName))
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, available in present.items() if available))
    if not present[name]:
        raise UserError(f"no {name.upper()} device found on this machine; use --device cpu or auto")
    return torch.device(name)


def require_precision(precision: str, device: torch.device) -> None:
    """It must be known. Half precision with loss scaling exists on GPUs only, and bf16 not on every CPU."""
    check_choice("precision", precision, get_args(Precision))
    if precision == "16-mixed" and device.type == "cpu":
        raise UserError("--precision 16-mixed needs a GPU, but the device is the CPU; use --precision bf16-mixed or 32")
    if precision == "bf16-mixed" and device.type == "cpu":
        require_bf16()


class Ranking(NamedTuple):
    """For every image the best classes, best first, and their scores: two (N, k) tensors on the CPU."""

    classes: Tensor
    scores: Tensor


def best_classes(scores: Tensor, count: int) -> Ranking:
    """The ``count`` best classes (all, if there are fewer) by scores (N, classes)."""
    top = scores.topk(min(count, scores.shape[1]), dim=1)
    return Ranking(top.indices, top.values)


_PIXELS, _FEWEST = 2**21, 16
"""Of the images that go through a net together on a CPU."""
_HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class Inference:
    """One device and one normalisation. Nets given to ``outputs`` and ``rank`` are frozen copies, see ``frozen``."""

    def __init__(
        self,
        device: torch.device,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        precision: Precision = "32",
        workers: int = 2,
        batch: int = 500,
        cache: PictureCache | None = None,
        shared: bool = False,
    ) -> None:
        """``workers``: processes that decode images from disk; ``cache`` keeps what they decoded. ``shared``: each
        process of the process group computes some of the images, and all have the results.
        """
        require_precision(precision, device)
        self.device, self.mean, self.std = device, tuple(mean), tuple(std)
        self.precision, self.cache, self.shared = precision, cache, shared
        self.workers, self.batch = check_int("workers", workers, WORKERS), check_int("batch", batch, BATCH)

    def frozen(self, net: nn.Module) -> nn.Module:
        """A frozen copy of a net, on the device."""
        return self.placed(frozen_copy(net))

    def placed(self, net: nn.Module) -> nn.Module:
        """The net itself, moved to the device."""
        placed: Any = net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return placed  # type: ignore[no-any-return]

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """Pooled features of a net as it is now, (N, channels), on the CPU."""
        return self.outputs(self.frozen(net), images, lambda output: (output.features.pooled,))[0]

    def rank(self, readouts: Mapping[str, Readout], images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of every image by every readout; one pass per net, however many readouts share it."""
        rankings: dict[str, Ranking] = {}
        for net in {id(readout.net): readout.net for readout in readouts.values()}.values():
            shared = {name: readout for name, readout in readouts.items() if readout.net is net}

            def read(output: Output, shared: dict[str, Readout] = shared) -> list[Tensor]:
                return [
                    part
                    for shared_readout in shared.values()
                    for part in best_classes(shared_readout.scores(output), best)
                ]

            columns = iter(self.outputs(net, images, read))
            rankings |= {name: Ranking(next(columns), next(columns)) for name in shared}
        return {name: rankings[name] for name in readouts}

    def outputs(self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]) -> list[Tensor]:
        """What ``read`` takes from the net's outputs for the test view; joined over batches, on the CPU."""
        if not len(images):
            raise ValueError("there are no images to look at")
        pieces = split_batches(np.arange(len(images), dtype=np.int64), self._batch_size(images.shape.size))
        # Cut as for one process, so that the answers are the same bit for bit.
        if self.shared:
            pieces = pieces[distributed.shard(len(pieces))]
        columns: list[Tensor] = []
        with torch.inference_mode():
            for piece, pixels in zip(pieces, self.reader(images).read(pieces), strict=True):
                parts = read(self.answer(net, self.normalised(pixels)))
                columns = columns or [_allocate(sum(map(len, pieces)), part) for part in parts]
                first = piece[0] - pieces[0][0]
                for column, part in zip(columns, parts, strict=True):
                    column[first : first + len(piece)] = part
        return distributed.all_gather_rows(columns or None) if self.shared else columns

    def _batch_size(self, size: int) -> int:
        """The inference batch size for images of this size: as configured, but smaller for large images.

        On a CPU large maps cost more than they save: MobileNetV2 took 3.6 s for 256 images of 224 pixels in batches of
        32, and 5.1 s in one batch, with five times the memory.
        """
        return min(self.batch, max(_FEWEST, _PIXELS // size**2)) if self.device.type == "cpu" else self.batch

    def reader(self, images: ImageSet) -> BatchReader:
        """Reads these images batch by batch; images in memory are moved to the device once."""
        device_images = images if self.device.type == "cpu" else images.on(self.device)
        return BatchReader(device_images, self.workers, pinned=self.device.type == "cuda", cache=self.cache)

    def sent(self, pixels: Tensor) -> Tensor:
        """The images on the device."""
        # CUDA copies asynchronously from pinned memory; other devices might read memory that is already freed.
        return pixels.to(self.device, non_blocking=self.device.type == "cuda")

    def normalised(self, pixels: Tensor) -> Tensor:
        """Normalise uint8 images."""
        return normalise(self.sent(pixels).contiguous(memory_format=torch.channels_last), self.mean, self.std)

    def answer(self, net: nn.Module, images: Tensor) -> Output:
        """What a net makes of normalised images: computed in the chosen precision, then float32."""
        with self._autocast():
            output: Output = net(images)
        return output if self.precision == "32" else tree_map_only(Tensor, _to_float32, output)

    def _autocast(self) -> AbstractContextManager[Any]:
        half = _HALF.get(self.precision)
        return nullcontext() if half is None else torch.autocast(self.device.type, dtype=half)


def _allocate(rows: int, part: Tensor) -> Tensor:
    """An empty tensor on the CPU for all rows. Collecting the parts first would take twice the memory."""
    maps = part.ndim == 4 and part.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if maps else torch.contiguous_format
    # Outside of inference mode, so that it is an ordinary tensor.
    with torch.inference_mode(False):
        return torch.empty((rows, *part.shape[1:]), dtype=part.dtype, memory_format=layout)


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


class FeatureBank:
    """Caches features by image, so that herding, class means and other callers share them.

    Valid as long as the net does not change. Callers must not modify the result: for the same images as before
    it is the cached tensor, not a copy.
    """

    def __init__(self, features: Callable[[ImageSet], Tensor]) -> None:
        self._features = features
        self._cached: dict[int, _CachedRows] = {}

    @property
    def image_count(self) -> int:
        """The number of images with cached features."""
        return sum(len(cached.rows) for cached in self._cached.values())

    def __call__(self, images: ImageSet) -> Tensor:
        """The features of the images, source by source: a batch never has images of two sources."""
        features: Tensor | None = None
        for index in np.unique(images.source_index):
            positions = np.flatnonzero(images.source_index == index)
            if len(positions) == len(images):
                return self._of_source(images, images.sources[index])
            part = self._of_source(images.subset(positions), images.sources[index])
            features = part.new_empty(len(images), *part.shape[1:]) if features is None else features
            features[torch.from_numpy(positions)] = part
        return self._features(images) if features is None else features

    def _of_source(self, images: ImageSet, source: Source) -> Tensor:
        cached = self._cached.setdefault(id(source), _CachedRows(source))
        missing = cached.missing(images.rows)
        if len(missing):
            fresh = images if len(missing) == len(images) else images.subset(missing)
            cached.add(fresh.rows, self._features(fresh))
        return cached.of(images.rows)


class _CachedRows:
    """Features of some rows of a source, in blocks as they were computed.

    They are neither sorted nor joined: that would temporarily take twice the memory.
    """

    def __init__(self, source: Source) -> None:
        self.source = source  # Referenced so that its id is not reused.
        self.rows = np.zeros(0, dtype=np.int64)
        """Sorted."""
        self._block_rows = np.zeros(0, dtype=np.int64)
        """The index of each row's features, counted over all blocks."""
        self._blocks: list[Tensor] = []

    def missing(self, rows: Int64) -> Int64:
        """The first positions of rows without cached features, in order."""
        first = np.unique(rows, return_index=True)[1]
        return np.sort(first[~np.isin(rows[first], self.rows)])

    def add(self, rows: Int64, features: Tensor) -> None:
        block_rows = np.concatenate([self._block_rows, np.arange(len(rows)) + len(self.rows)])
        joined = np.concatenate([self.rows, rows])
        order = np.argsort(joined)
        self.rows, self._block_rows = joined[order], block_rows[order]
        self._blocks.append(features)

    def of(self, rows: Int64) -> Tensor:
        block_rows = self._block_rows[np.searchsorted(self.rows, rows)]
        features: Tensor | None = None
        start = 0
        for block in self._blocks:
            positions = np.flatnonzero((block_rows >= start) & (block_rows < start + len(block)))
            offsets = block_rows[positions] - start
            start += len(block)
            if len(positions) == len(block_rows):
                return block if np.array_equal(offsets, np.arange(len(block))) else block[torch.from_numpy(offsets)]
            if len(positions):
                features = block.new_empty(len(rows), *block.shape[1:]) if features is None else features
                features[torch.from_numpy(positions)] = block[torch.from_numpy(offsets)]
        assert features is not None
        return features
