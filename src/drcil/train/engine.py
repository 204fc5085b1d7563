"""Trains stages and looks at images through nets, on whatever device there is.

Methods say what is trained, on what, against which loss; how it is done is decided here, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ByteSize, ConfigDict, Field
from torch import Tensor, nn

from ..data.augment import Augment, normalise
from ..data.sources.cache import PictureCache, require_forked, through
from ..data.sources.imageset import ImageSet
from ..data.sources.reader import Reader, cut
from ..inference.frozen import frozen_copy
from ..inference.ranking import Ranking, rank
from ..keys import randomness
from ..nets.output import Output, Readout
from ..stages import Stage
from .device import make_fabric
from .events import Listener, StageDone, silence
from .optimizers import trained_parameters
from .snapshot import Journal, Place, below, digest_of, prefixed, restore_module
from .training import Training

Precision = Literal["32", "16-mixed", "bf16-mixed"]


class EngineSettings(BaseModel):
    """Where and how the engine computes. None of it changes what is learnt, but for rounding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Precision = "32"
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=2, ge=0)
    """Processes that decode images from disk."""
    cache: ByteSize = ByteSize(0)
    """Memory for decoded images from disk, such as 2GB; a task begins with none of them."""
    compile: bool = False
    """Compile the trained net and its teachers with ``torch.compile``: minutes at first, then faster steps."""
    snapshot_seconds: float = Field(default=20.0, ge=0)
    """At least this long between two snapshots of a stage in progress."""
    eval_every: int | None = Field(default=None, ge=1)
    """Measure accuracy every so many epochs, on held-out images if there are any; None: only after a task."""
    inference_batch: int = Field(default=500, ge=1)


@dataclass(frozen=True)
class Preprocessing:
    """How uint8 images become the floats a net sees."""

    augment: Augment
    mean: tuple[float, ...]
    std: tuple[float, ...]


class TrainingEngine:
    """One device, one seed, one way of looking at images."""

    def __init__(
        self,
        settings: EngineSettings,
        preprocessing: Preprocessing,
        seed: int,
        journal: Journal | None = None,
        listener: Listener = silence,
    ) -> None:
        self.settings, self.preprocessing, self.seed = settings, preprocessing, seed
        self.journal = journal or Journal()
        self.listener = listener
        self.fabric = make_fabric(settings)
        self.device = self.fabric.device
        self.fresh_precision: dict[str, Any] = self.fabric.strategy.precision.state_dict()
        """What a stage's precision begins with; empty unless it scales the loss."""
        self._cache: PictureCache | None = None
        if settings.cache:
            require_forked(settings.workers)
            self._cache = PictureCache(settings.cache)
        self._task = 0
        self._position = 0
        self._watched: ImageSet | None = None
        self.measured_on: Literal["test", "validation"] = "test"

    @contextmanager
    def task(self, number: int, test: ImageSet | None = None, validation: ImageSet | None = None) -> Iterator[None]:
        """Within the block stages belong to this task, and layers that are made draw from its key.

        Accuracies in between are measured on the validation images, if there are any, else on the test images.
        """
        self._task, self._position = number, 0
        if self._cache is not None:
            self._cache.clear()
        self._watched, self.measured_on = (validation, "validation") if validation else (test, "test")
        with randomness(self.seed, "task", number, "between stages"):
            yield

    def fit(self, stage: Stage) -> None:
        """Train ``stage.net`` in place; or, if this stage was finished before a kill, restore its result in place."""
        started = time.monotonic()
        place = Place(self._task, self._position, stage.name, digest_of(stage))
        self._position += 1
        net = self._placed(stage.net)
        finished = self.journal.finished(place)
        if finished is not None:
            restore_module(net, below("net", finished))
        else:
            # Shut off, so that what is drawn after the stage does not depend on whether it was trained or restored.
            with randomness(self.seed, "task", place.task, place.position, stage.name), trained_parameters(stage):
                Training(self, stage, place).run()
            self.journal.keep_finished(place, prefixed("net", net.state_dict()))
        net.eval()
        self.listener(StageDone(place.task, stage.name, time.monotonic() - started, finished is not None))

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """Pooled features of the test view, (N, channels), on the CPU."""
        return self.see(net, images, lambda output: (output.features.pooled,))[0]

    def rank(self, readouts: Mapping[str, Readout], images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of every image by every readout; one pass per net, however many readouts share it."""
        return rank(self.see, readouts, images, best)

    def watched_accuracy(self, net: nn.Module, epoch: int) -> float | None:
        """Percent of the images to measure on, if it is to be measured after this epoch."""
        every = self.settings.eval_every
        if every is None or (epoch + 1) % every or self._watched is None or not len(self._watched):
            return None
        best = self.rank({"net": Readout(net)}, self._watched, best=1)["net"].classes[:, 0]
        return 100 * float(np.mean(best.numpy() == self._watched.labels))

    def see(self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """What ``read`` takes from the outputs of a frozen copy for the test view; joined over batches, on the CPU."""
        if not len(images):
            raise ValueError("there are no images to look at")
        frozen = self.frozen_copy(net)
        everything = np.arange(len(images), dtype=np.int64)
        parts: list[list[Tensor]] = []
        with torch.inference_mode():
            for pixels in self.reader(images).read(cut(everything, self.settings.inference_batch)):
                output = self.answer(frozen, self.normalise(pixels))
                parts.append([tensor.cpu() for tensor in read(output)])
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def reader(self, images: ImageSet) -> Reader:
        """Reads these images batch by batch, from where it is fastest to."""
        images = self.near(images)
        if self._cache is not None:
            images = ImageSet(through(self._cache, images.source), images.rows, images.labels)
        return Reader(images, self.settings.workers, pinned=self.device.type == "cuda")

    def augment(self, pixels: Tensor, draws: torch.Generator | None) -> Tensor:
        """The uint8 images on the device, augmented if there is a generator to draw from."""
        pixels = self._sent(pixels)
        return pixels if draws is None else self.preprocessing.augment(pixels, draws)

    def normalise(self, pixels: Tensor) -> Tensor:
        """What a net sees of uint8 images."""
        pixels = self._sent(pixels).contiguous(memory_format=torch.channels_last)
        return normalise(pixels, self.preprocessing.mean, self.preprocessing.std)

    def answer(self, net: nn.Module, images: Tensor) -> Output:
        """What a net that is not being trained makes of images: computed in the engine's precision, then float32."""
        with self.fabric.autocast():
            output = net(images)
        answer: Output = self.fabric.strategy.precision.convert_output(output)
        return answer

    def compiled(self, net: nn.Module) -> nn.Module:
        """How to call a net in training: as it is or, if that is asked for, compiled; its tensors stay its own."""
        compiled: Any = torch.compile(net) if self.settings.compile else net
        return compiled  # type: ignore[no-any-return]

    def near(self, images: ImageSet) -> ImageSet:
        """Images in memory belong in the device's memory, once."""
        if self.device.type == "cpu":
            return images
        return ImageSet(images.source.on(self.device), images.rows, images.labels)

    def frozen_copy(self, net: nn.Module) -> nn.Module:
        """A frozen copy, folded where it can be, in its place."""
        return self._placed(frozen_copy(net))

    def _sent(self, pixels: Tensor) -> Tensor:
        # CUDA fetches from memory that is pinned for it; other devices might read what is gone by then.
        return pixels.to(self.device, non_blocking=self.device.type == "cuda")

    def _placed(self, net: nn.Module) -> nn.Module:
        placed: Any = net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return placed  # type: ignore[no-any-return]
