"""Trains stages, on whatever device there is.

Methods say what is trained, on what, against which loss; how it is done is decided here, once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor, nn

from ..data.augment import Augment
from ..data.augment.pixels import on_device_of, put_rows
from ..data.sources.cache import PictureCache, require_forked
from ..data.sources.imageset import ImageSet, Int64
from ..errors import UserError
from ..inference.device import find_device
from ..inference.inference import Inference
from ..keys import Draws, randomness
from ..limits import ACCUMULATE, BATCH, DEVICES, EVERY, TIMEOUT, WORKERS, DeviceName, Precision, machine_memory
from ..nets.output import Readout
from ..stages import Stage
from ..team import Team
from ..validation import explain
from .events import Listener, StageDone, silence
from .kept import KeptFeatures
from .optimizers import is_idle, trained_parameters
from .snapshot import Journal, Place, below, digest_of, prefixed, restore_module
from .training import Training

_FABRIC_PRECISION = {"32": "32-true", "16-mixed": "16-mixed", "bf16-mixed": "bf16-mixed"}


class EngineSettings(BaseModel):
    """Where and how the engine computes. None of it changes what is learnt, but for rounding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: DeviceName = "auto"
    precision: Precision = "32"
    workers: int = Field(default=2, ge=WORKERS.least, le=WORKERS.most)
    """Processes that decode images from disk."""
    cache: ByteSize = ByteSize(0)
    """Memory for decoded images from disk, such as 2GB; a task begins with none of them."""
    compile: bool = False
    """Compile the trained net and its teachers with ``torch.compile``: minutes at first, then faster steps."""
    snapshot_seconds: float = Field(default=20.0, ge=0, allow_inf_nan=False)
    """At least this long between two snapshots of a stage in progress."""
    eval_every: int | None = Field(default=None, ge=EVERY.least, le=EVERY.most)
    """Measure accuracy every so many epochs, on held-out images if there are any; None: only after a task."""
    kept_features: ByteSize = ByteSize(2**30)
    """Memory for features of a frozen backbone, which the steps of a task share where images are not augmented."""
    devices: Annotated[int, Field(ge=DEVICES.least, le=DEVICES.most)] | Literal["auto"] = 1
    """Processes that share the work, each with a device of its own; ``auto``: one for every GPU of the machine."""
    accumulate: int = Field(default=1, ge=ACCUMULATE.least, le=ACCUMULATE.most)
    """Parts in which a process goes through its share of a batch, for batches that do not fit into memory."""
    sync_batchnorm: bool | None = None
    """Whether processes take statistics of batch normalisation together; None: where each has less than 64 images."""
    timeout: float = Field(default=600.0, gt=0, le=TIMEOUT.most)
    """Seconds that one process waits for another before it takes it for lost."""
    inference_batch: int = Field(default=500, ge=BATCH.least, le=BATCH.most)

    @field_validator("cache", "kept_features", mode="before")
    @classmethod
    def _whole_size(cls, given: Any) -> Any:
        """Of text that only begins like a size, such as 1,5GB, the rest would be left unread."""
        if isinstance(given, str) and not re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*[A-Za-z]*\s*", given):
            raise ValueError("give a size such as '500MB' or '2GB'")
        return given

    def inference(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Inference:
        """How images go through nets that are not being trained, by these settings."""
        if self.cache:
            require_forked(self.workers)
            present = machine_memory()
            if present is not None and self.cache > present:
                raise UserError(f"a cache of {self.cache} bytes is more than the {present} bytes that this machine has")
        team = Team.current()
        return Inference(
            find_device(self.device),
            mean,
            std,
            precision=self.precision,
            workers=self.workers,
            batch=self.inference_batch,
            cache=PictureCache(self.cache, team) if self.cache else None,
            team=team,
        )


def engine_settings(given: Mapping[str, Any]) -> EngineSettings:
    """Engine settings from keyword arguments, with errors for people."""
    if "threads" in given:
        raise UserError("'threads' applies to the whole process; call drcil.configure(threads=…)")
    try:
        return EngineSettings(**given)
    except ValidationError as error:
        raise UserError(f"invalid engine option: {explain(error)}") from None


class TrainingEngine:
    """One device, one augmentation, one seed."""

    rehearsing = False

    def __init__(
        self,
        settings: EngineSettings,
        inference: Inference,
        augmentation: Augment,
        seed: int,
        journal: Journal | None = None,
        listener: Listener = silence,
    ) -> None:
        """``inference``: what ``settings.inference`` gives; it says how images are read and normalised."""
        self.settings, self.inference, self.augmentation, self.seed = settings, inference, augmentation, seed
        self.journal = journal or Journal()
        self.listener = listener
        self.device, self.team = inference.device, inference.team
        precision: Any = _FABRIC_PRECISION[settings.precision]
        # Of several processes each has set up the GPU that is its own.
        own: Any = [torch.cuda.current_device()] if self.device.type == "cuda" else 1
        # Processes are ours to start and to count: Fabric must not look for Slurm, whose options it would judge.
        alone = LightningEnvironment()
        self.fabric = Fabric(accelerator=self.device.type, devices=own, precision=precision, plugins=alone)
        if settings.compile:
            require_compiler(self.device)
        self.fresh_precision: dict[str, Any] = self.fabric.strategy.precision.state_dict()
        """What a stage's precision begins with; empty unless it scales the loss."""
        self._kept = KeptFeatures(inference, settings.kept_features)
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
        # Features may have been asked for since the last task.
        self._kept.clear()
        if self.inference.cache is not None:
            self.inference.cache.clear()
        self._watched, self.measured_on = (validation, "validation") if validation else (test, "test")
        try:
            with randomness(self.seed, "task", number, "between stages"):
                yield
        finally:
            self._kept.clear()

    def fit(self, stage: Stage) -> None:
        """Train ``stage.net`` in place; or, if this stage was finished before a kill, restore its result in place."""
        started = time.monotonic()
        place = Place(self._task, self._position, stage.name, digest_of(stage))
        self._position += 1
        net = self.inference.placed(stage.net)
        # Before the journal is asked: what later stages find kept must not depend on whether this one is restored.
        kept = None if self.augments(stage) else self._kept.of(stage)
        finished, idle = self.team.leaders(self.journal.finished(place)), is_idle(stage)
        if finished is not None:
            with self.journal.fitting():
                restore_module(net, below("net", finished))
        elif not idle:
            # Shut off, so that what is drawn after the stage does not depend on whether it was trained or restored.
            with randomness(self.seed, "task", place.task, place.position, stage.name), trained_parameters(stage):
                Training(self, stage, place, kept).run()
            self.journal.keep_finished(place, prefixed("net", net.state_dict()))
        net.eval()
        self.listener(StageDone(place.task, stage.name, time.monotonic() - started, idle or finished is not None))

    def augments(self, stage: Stage) -> bool:
        """Whether a stage sees its images in views that change."""
        return stage.augment and (bool(self.augmentation.steps) or self.augmentation.crops_files)

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """Pooled features of the test view, (N, channels), on the CPU."""
        kept = self._kept.pooled(net, images)
        return self.inference.features(net, images) if kept is None else kept.cpu()

    def watched_accuracy(self, net: nn.Module, epoch: int) -> float | None:
        """Percent of the images to measure on, if it is to be measured after this epoch."""
        every = self.settings.eval_every
        if every is None or (epoch + 1) % every or self._watched is None or not len(self._watched):
            return None
        readouts = {"net": Readout(self.inference.frozen(net))}
        best = self.inference.rank(readouts, self._watched, best=1)["net"].classes[:, 0]
        return 100 * float(np.mean(best.numpy() == self._watched.labels))

    def augment(self, pixels: Tensor, draws: Draws | None, chosen: Int64 | None = None) -> Tensor:
        """The uint8 images on the device, augmented if there is something to draw from; only the chosen, if any are.

        Draws are for those that are augmented.
        """
        pixels = self.inference.sent(pixels)
        if draws is None or (chosen is not None and not len(chosen)):
            return pixels
        if chosen is None:
            return self.augmentation(pixels, draws)
        views, places = pixels.clone(), torch.from_numpy(chosen)
        put_rows(views, places, self.augmentation(pixels.index_select(0, on_device_of(places, pixels)), draws))
        return views

    def compiled(self, net: nn.Module) -> nn.Module:
        """How to call a net in training: as it is or, if that is asked for, compiled; its tensors stay its own."""
        compiled: Any = torch.compile(net) if self.settings.compile else net
        return compiled  # type: ignore[no-any-return]


def require_compiler(device: torch.device) -> None:
    """Compile something small, to say now and in a sentence what would otherwise end the first stage."""
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"--compile cannot be used on this machine ({why}); install a compiler (C++ for the CPU, Triton for "
            f"CUDA), or omit --compile"
        ) from error
