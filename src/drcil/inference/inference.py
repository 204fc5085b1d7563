"""Images through frozen nets: read in their test view, moved to the device, normalised, answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..arguments import whole
from ..data.augment import normalise
from ..data.sources.cache import PictureCache, through
from ..data.sources.imageset import ImageSet
from ..data.sources.reader import Reader, cut
from ..limits import BATCH, WORKERS, Precision
from ..nets.output import Output, Readout
from ..team import ALONE, Team
from .device import require_precision
from .frozen import frozen_copy
from .ranking import Ranking, best_classes

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
        team: Team = ALONE,
    ) -> None:
        """``workers``: processes that decode images from disk; ``cache`` keeps what they decoded. Of a ``team`` each
        process looks at some of the images, and all have the answers.
        """
        require_precision(precision, device)
        self.device, self.mean, self.std = device, tuple(mean), tuple(std)
        self.precision, self.cache, self.team = precision, cache, team
        self.workers, self.batch = whole("workers", workers, WORKERS), whole("batch", batch, BATCH)

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
                return [part for own in shared.values() for part in best_classes(own.scores(output), best)]

            columns = iter(self.outputs(net, images, read))
            rankings |= {name: Ranking(next(columns), next(columns)) for name in shared}
        return {name: rankings[name] for name in readouts}

    def outputs(self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]) -> list[Tensor]:
        """What ``read`` takes from the net's outputs for the test view; joined over batches, on the CPU."""
        if not len(images):
            raise ValueError("there are no images to look at")
        pieces = cut(np.arange(len(images), dtype=np.int64), self._at_once(images.source.size))
        # Cut as for one process, so that the answers are the same bit for bit.
        pieces = pieces[self.team.share(len(pieces))]
        columns: list[Tensor] = []
        with torch.inference_mode():
            for piece, pixels in zip(pieces, self.reader(images).read(pieces), strict=True):
                found = read(self.answer(net, self.normalised(pixels)))
                columns = columns or [_room(sum(map(len, pieces)), part) for part in found]
                first = piece[0] - pieces[0][0]
                for column, part in zip(columns, found, strict=True):
                    column[first : first + len(piece)] = part
        return self.team.joined(columns or None)

    def _at_once(self, size: int) -> int:
        """How many images of this size go through a net together: as many as were asked for, but few large ones.

        On a CPU large maps cost more than they save: MobileNetV2 took 3.6 s for 256 images of 224 pixels in batches of
        32, and 5.1 s in one batch, with five times the memory.
        """
        return min(self.batch, max(_FEWEST, _PIXELS // size**2)) if self.device.type == "cpu" else self.batch

    def reader(self, images: ImageSet) -> Reader:
        """Reads these images batch by batch; those in memory from the device's own, where they are moved once."""
        source = images.source if self.device.type == "cpu" else images.source.on(self.device)
        if self.cache is not None:
            source = through(self.cache, source)
        placed = ImageSet(source, images.rows, images.labels)
        return Reader(placed, self.workers, pinned=self.device.type == "cuda")

    def sent(self, pixels: Tensor) -> Tensor:
        """The images on the device."""
        # CUDA fetches from memory that is pinned for it; other devices might read what is gone by then.
        return pixels.to(self.device, non_blocking=self.device.type == "cuda")

    def normalised(self, pixels: Tensor) -> Tensor:
        """What a net sees of uint8 images."""
        return normalise(self.sent(pixels).contiguous(memory_format=torch.channels_last), self.mean, self.std)

    def answer(self, net: nn.Module, images: Tensor) -> Output:
        """What a net makes of normalised images: computed in the chosen precision, then float32."""
        with self._autocast():
            output: Output = net(images)
        return output if self.precision == "32" else tree_map_only(Tensor, _in_full, output)

    def _autocast(self) -> AbstractContextManager[Any]:
        half = _HALF.get(self.precision)
        return nullcontext() if half is None else torch.autocast(self.device.type, dtype=half)


def _room(rows: int, part: Tensor) -> Tensor:
    """Where parts like this one go, on the CPU. They are not collected first, which would take them twice."""
    maps = part.ndim == 4 and part.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if maps else torch.contiguous_format
    # Outside of that mode, so that it is an ordinary tensor.
    with torch.inference_mode(False):
        return torch.empty((rows, *part.shape[1:]), dtype=part.dtype, memory_format=layout)


def _in_full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
