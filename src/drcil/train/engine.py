"""Trains stages and looks at images through nets, on whatever device there is.

Methods say what is trained, on what, against which loss; how it is done is decided here, once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from lightning_fabric import Fabric
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ..data.augment import Augment, normalise
from ..data.imageset import ArraySource, ImageSet
from ..errors import UserError
from ..keys import derive, generator, randomness
from ..stages import Batch, Moment, Output, Readout, Stage, StepHook
from .events import EpochDone, Listener, StageDone, StageStarted, StepDone, silence
from .inference import Ranking, rank, run, still
from .loader import batches
from .optimizers import make_optimizer, set_rate, trained_parameters
from .snapshot import Journal, Place, module_state, optimizer_state, restore_module, restore_optimizer
from .tally import Tally

Precision = Literal["32", "16-mixed", "bf16-mixed"]
_FABRIC_PRECISION = {"32": "32-true", "16-mixed": "16-mixed", "bf16-mixed": "bf16-mixed"}


class EngineSettings(BaseModel):
    """Where and how the engine computes. None of it changes what is learnt, but for rounding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Precision = "32"
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=2, ge=0)
    """Processes that decode images from disk."""
    snapshot_seconds: float = Field(default=20.0, ge=0)
    """At least this long between two snapshots of a stage in progress."""
    eval_every: int | None = Field(default=None, ge=1)
    """Measure test accuracy every so many epochs; None: only after a task."""
    inference_batch: int = Field(default=500, ge=1)


@dataclass(frozen=True)
class Look:
    """How uint8 images become the floats a net sees."""

    augment: Augment
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Engine:
    """One device, one seed, one way of looking at images."""

    def __init__(
        self,
        settings: EngineSettings,
        look: Look,
        seed: int,
        journal: Journal | None = None,
        listener: Listener = silence,
    ) -> None:
        self.settings, self.look, self.seed = settings, look, seed
        self.journal = journal or Journal()
        self.listener = listener
        self.fabric = _fabric(settings)
        self.device = self.fabric.device
        self._task = 0
        self._position = 0
        self._watched: ImageSet | None = None

    @contextmanager
    def task(self, number: int, test: ImageSet | None = None) -> Iterator[None]:
        """Within the block stages belong to this task, and layers that are made draw from its key."""
        self._task, self._position, self._watched = number, 0, test
        with randomness(self.seed, "task", number, "between stages"):
            yield

    def fit(self, stage: Stage) -> None:
        """Train ``stage.net`` in place; or, if this stage was finished before a kill, restore its result in place."""
        place = Place(self._task, self._position, stage.name, _digest(stage))
        self._position += 1
        started = time.monotonic()
        net = stage.net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        finished = self.journal.finished(place)
        if finished is None:
            with trained_parameters(stage):
                self._train(stage, place)
            self.journal.keep_finished(place, module_state("net", net))
        else:
            restore_module("net", net, finished)
        net.eval()
        self.listener(StageDone(place.task, stage.name, time.monotonic() - started, finished is not None))

    def _train(self, stage: Stage, place: Place) -> None:
        schedule, hooks = stage.schedule, nn.ModuleList(stage.hooks).to(self.device)
        optimizer = make_optimizer(stage, self.device)
        first_epoch = 0
        snapshot = self.journal.partial(place)
        if snapshot is not None:
            first_epoch, tensors, scalars = snapshot
            restore_module("net", stage.net, tensors)
            restore_module("hooks", hooks, tensors)
            restore_optimizer(optimizer, tensors, scalars)
        module, stepper = self.fabric.setup(stage.net, optimizer)
        teachers = {name: self._still(teacher) for name, teacher in stage.teachers.items()}
        labels = torch.from_numpy(stage.data.labels).to(self.device)
        rows = torch.from_numpy(stage.data.rows).to(self.device)
        self.listener(StageStarted(place.task, stage.name, schedule.epochs, first_epoch, len(stage.data)))
        for epoch in range(first_epoch, schedule.epochs):
            started = time.monotonic()
            set_rate(optimizer, schedule.rate(epoch))
            stage.net.train()
            for part in stage.frozen:
                part.eval()
            path = (self.seed, "task", place.task, place.position, stage.name, "epoch", epoch)
            with randomness(*path, "net"):
                losses = self._epoch(stage, place, epoch, path, module, stepper, teachers, labels, rows)
            accuracy = self._accuracy_in_between(stage.net, epoch)
            seconds = time.monotonic() - started
            self.listener(EpochDone(place.task, stage.name, epoch, schedule.rate(epoch), losses, seconds, accuracy))
            if self.journal.due() and epoch + 1 < schedule.epochs:
                tensors, scalars = optimizer_state(optimizer)
                state = {**module_state("net", stage.net), **module_state("hooks", hooks), **tensors}
                self.journal.keep_partial(place, epoch + 1, state, scalars)

    def _epoch(
        self,
        stage: Stage,
        place: Place,
        epoch: int,
        path: tuple[int | str, ...],
        module: Callable[[Tensor], Output],
        stepper: torch.optim.Optimizer,
        teachers: Mapping[str, nn.Module],
        labels: Tensor,
        rows: Tensor,
    ) -> dict[str, float]:
        """One pass over the data; the average of each loss term."""
        size = stage.schedule.batch_size
        positions = stage.sampler(stage.data.labels, derive(*path, "order"))
        order = torch.from_numpy(positions).to(self.device)
        random_view = derive(*path, "view") if stage.augment and self.look.augment.crops_files else None
        tally = Tally()
        for step, pixels in enumerate(batches(self._near(stage.data), positions, size, random_view, self.settings.workers)):
            draws = generator(*path, step, "augment")
            images = self._prepare(pixels, draws if stage.augment else None)
            where = order[step * size : step * size + len(images)]
            with torch.no_grad(), self.fabric.autocast():
                advice = {name: teacher(images) for name, teacher in teachers.items()}
            terms = stage.objective(module(images), advice, Batch(labels[where], rows[where]))
            stepper.zero_grad()
            self.fabric.backward(tally.add(terms, len(images)))
            moment = Moment(epoch, step, stage.schedule.rate(epoch), draws)
            _call(stage.hooks, lambda hook, now=moment: hook.before_step(now))
            stepper.step()
            _call(stage.hooks, lambda hook, now=moment: hook.after_step(now))
            self.listener(StepDone(place.task, stage.name, epoch, len(images), tally.peek()))
        losses = tally.averages()
        if losses["total"] != losses["total"]:
            raise UserError(
                f"the loss of stage '{stage.name}' of task {place.task} is not a number after epoch {epoch + 1}; "
                f"a smaller learning rate than {stage.schedule.lr} may help"
            )
        return losses

    def features(self, net: nn.Module, images: ImageSet) -> Tensor:
        """Pooled features of the test view, (N, channels), on the CPU."""
        return run(self, net, images, lambda output: (output.features.pooled,))[0]

    def rank(self, readouts: Mapping[str, Readout], images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of every image by every readout; one pass per net, however many readouts share it."""
        return rank(self, readouts, images, best)

    def see(self, net: nn.Module, images: ImageSet) -> Iterator[Output]:
        """A frozen, folded copy's outputs for the test view of these images, batch by batch, on the device."""
        frozen = self._still(net)
        positions = torch.arange(len(images)).numpy()
        size = self.settings.inference_batch
        with torch.inference_mode(), self.fabric.autocast():
            for pixels in batches(self._near(images), positions, size, None, self.settings.workers):
                yield frozen(self._prepare(pixels, None))

    def _prepare(self, pixels: Tensor, draws: torch.Generator | None) -> Tensor:
        pixels = pixels.to(self.device, non_blocking=True)
        if draws is not None:
            pixels = self.look.augment(pixels, draws)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        return normalise(pixels, self.look.mean, self.look.std)

    def _near(self, images: ImageSet) -> ImageSet:
        """Images in memory belong in the device's memory, once."""
        source = images.source
        if self.device.type == "cpu" or not isinstance(source, ArraySource):
            return images
        return ImageSet(source.on(self.device), images.rows, images.labels)

    def _still(self, net: nn.Module) -> nn.Module:
        return still(net).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _accuracy_in_between(self, net: nn.Module, epoch: int) -> float | None:
        every = self.settings.eval_every
        if every is None or (epoch + 1) % every or self._watched is None:
            return None
        labels = torch.from_numpy(self._watched.labels)
        best = rank(self, {"net": Readout(net)}, self._watched, 1)["net"].classes[:, 0]
        return 100 * float((best == labels).float().mean())


def _fabric(settings: EngineSettings) -> Fabric:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for, but this machine has no CUDA device; use --device cpu or auto")
    if settings.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps was asked for, but this machine has no MPS device; use --device cpu or auto")
    # Convolutions are chosen by rule, not by timing, so that a resumed run repeats them.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return Fabric(accelerator=settings.device, devices=1, precision=_FABRIC_PRECISION[settings.precision])  # type: ignore[arg-type]


def _call(hooks: Sequence[StepHook], act: Callable[[StepHook], None]) -> None:
    with torch.no_grad():
        for hook in hooks:
            act(hook)


def _digest(stage: Stage) -> str:
    """Tells two stages apart by what they train, on what, for how long; not by the weights they start from."""
    digest = hashlib.blake2b(stage.schedule.model_dump_json().encode(), digest_size=8)
    digest.update(stage.data.rows.tobytes() + stage.data.labels.tobytes())
    for name, tensor in stage.net.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
    return digest.hexdigest()
