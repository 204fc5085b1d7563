"""A stage under way: the loop over epochs and steps, from the beginning or from where a snapshot left it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..data.sources.imageset import Int64, indices
from ..data.sources.reader import batches_together, cut
from ..errors import UserError
from ..keys import KeyPart, derive, generator, seed_torch
from ..stages import Batch, Moment, Stage
from .events import EpochDone, StageStarted, StepDone
from .kept import OnFeatures, still_modules
from .optimizers import make_optimizer, parameters_of, set_rate
from .snapshot import Place, Snapshot, below, optimizer_state, prefixed, restore_module, restore_optimizer
from .tally import Tally

if TYPE_CHECKING:
    from .engine import TrainingEngine


class Training:
    """Trains the net of a stage once. Every draw is keyed by epoch and step, so that it can go on at any step."""

    def __init__(self, engine: TrainingEngine, stage: Stage, place: Place, kept: Tensor | None = None) -> None:
        """``kept``: what the net's head reads of every image; then nets are asked by where images stand in the data."""
        self.engine, self.stage, self.place, self.kept = engine, stage, place, kept
        # A precision has a state of its own where it scales the loss; every stage begins with a fresh one.
        self.precision = engine.fabric.strategy.precision
        self.precision.load_state_dict(engine.fresh_precision)
        self.hooks = nn.ModuleList(stage.hooks).to(engine.device)
        self.optimizer = make_optimizer(stage, fused=engine.device.type != "mps" and not engine.fresh_precision)
        self.tally = Tally()
        self.epoch, self.step = 0, 0
        self._go_on()
        if engine.settings.compile:
            # Nets of earlier stages count towards the number of variants after which torch gives up compiling.
            torch.compiler.reset()
        self.module, self.stepper = engine.fabric.setup(engine.compiled(self._asked(stage.net)), self.optimizer)
        self.teachers = {
            name: engine.compiled(self._asked(engine.inference.frozen(teacher)))
            for name, teacher in stage.teachers.items()
        }
        self.reader = engine.inference.reader(stage.data)
        self.labels = torch.from_numpy(stage.data.labels).to(engine.device)
        self.rows = torch.from_numpy(stage.data.rows).to(engine.device)

    def _asked(self, net: nn.Module) -> nn.Module:
        """The net, as its steps ask it."""
        return net if self.kept is None else OnFeatures(net, self.kept)

    def run(self) -> None:
        """Train from the epoch and step that was reached to the end."""
        stage, task, schedule = self.stage, self.place.task, self.stage.schedule
        stage.net.train()
        for part in still_modules(stage):
            part.eval()
        images = len(self._positions(self._path()))
        self.engine.listener(StageStarted(task, stage.name, schedule.epochs, self.epoch, images))
        while self.epoch < schedule.epochs:
            started = time.monotonic()
            rate = schedule.rate(self.epoch)
            set_rate(self.optimizer, rate, self.epoch)
            self._run_epoch(rate)
            losses = self._checked(self.tally.averages())
            accuracy = self.engine.watched_accuracy(stage.net, self.epoch)
            seconds = time.monotonic() - started
            measured_on = self.engine.measured_on
            self.engine.listener(EpochDone(task, stage.name, self.epoch, rate, losses, seconds, accuracy, measured_on))
            self.epoch, self.step, self.tally = self.epoch + 1, 0, Tally()

    def _run_epoch(self, rate: float) -> None:
        """The steps of the epoch that are left."""
        stage, place, path = self.stage, self.place, self._path()
        for images, where in self._batches_left(path):
            seed_torch(*path, self.step, "net")
            self._take_step(images, where, Moment(self.epoch, self.step, rate, generator(*path, self.step, "hooks")))
            self.step += 1
            losses = self.tally.peek()
            self.engine.listener(StepDone(place.task, stage.name, self.epoch, len(images), losses))
            if self.engine.journal.due():
                self.engine.journal.keep_partial(place, self._snapshot())

    def _path(self) -> tuple[KeyPart, ...]:
        """What all draws of the epoch are keyed by."""
        place = self.place
        return (self.engine.seed, "task", place.task, place.position, place.stage, "epoch", self.epoch)

    def _positions(self, path: tuple[KeyPart, ...]) -> Int64:
        """Where in the stage's data the images of the epoch are, in order."""
        return self.stage.sampler(self.stage.data.labels, derive(*path, "order"))

    def _batches_left(self, path: tuple[KeyPart, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each step that is left: what the net is asked by, and where in the stage's data it is from.

        Crops of files are keyed by where in the epoch they are taken. The rest is augmented several steps together, and
        keyed by where the first of them stands, so that a stage which goes on in their midst prepares them all again
        and leaves out those it has taken.
        """
        stage, size, begun = self.stage, self.stage.schedule.batch_size, self.step
        positions = self._positions(path)
        pieces = cut(positions, size, join_single=self._too_small(positions, size))
        # Sent to the device once, not with every chunk.
        everywhere = indices(np.ascontiguousarray(positions), self.engine.device)
        where = torch.split(everywhere, [len(piece) for piece in pieces])
        if self.kept is not None:
            yield from ((place, place) for place in where[begun:])
            return
        together = batches_together(stage.data.source, size)
        starts = range(begun - begun % together, len(pieces), together)
        key = derive(*path, "view") if stage.augment and self.engine.augmentation.crops_files else None
        chunks = [np.concatenate(pieces[start : start + together]) for start in starts]
        read = self.reader.read(chunks, key, first=starts.start * size)
        for start, pixels in zip(starts, read, strict=True):
            draws = generator(*path, start, "augment") if stage.augment else None
            places = where[start : start + together]
            views = torch.split(self.engine.augment(pixels, draws), [len(place) for place in places])
            for images, place in islice(zip(views, places, strict=True), max(0, begun - start), None):
                yield self.engine.inference.normalised(images), place

    def _too_small(self, positions: Int64, size: int) -> bool:
        """Whether there is a last batch of one image, of which nothing is left but a value per channel.

        Batch normalisation needs two.
        """
        if len(positions) % size != 1 % size:
            return False
        one = self.stage.data.subset(positions[:1])
        inference = self.engine.inference
        last, pooled = inference.outputs(
            inference.frozen(self.stage.net), one, lambda output: (output.features.last, output.features.pooled)
        )
        if last.numel() > pooled.numel():
            return False
        if size == 1 or len(positions) == 1:
            raise UserError(
                f"stage '{self.stage.name}' of task {self.place.task} cannot train on one image of "
                f"{one.source.size} x {one.source.size} pixels at a time, of which the backbone leaves one position: "
                f"give more images, a larger batch size or a larger image size"
            )
        return True

    def _take_step(self, images: Tensor, where: Tensor, moment: Moment) -> None:
        with torch.no_grad():
            advice = {name: self.engine.inference.answer(teacher, images) for name, teacher in self.teachers.items()}
        terms = self.stage.objective(self.module(images), advice, Batch(self.labels[where], self.rows[where]))
        self.stepper.zero_grad()
        self.engine.fabric.backward(self.tally.add(terms, len(images)))
        clip = self.stage.schedule.clip
        if self.stage.hooks or clip is not None:
            self.precision.unscale_gradients(self.optimizer)
        with torch.no_grad():
            for hook in self.stage.hooks:
                hook.before_step(moment)
        if clip is not None:
            # Behind the hooks, so that the bound holds for what the optimiser is given.
            nn.utils.clip_grad_norm_(parameters_of(self.optimizer), clip)
        self.stepper.step()
        with torch.no_grad():
            for hook in self.stage.hooks:
                hook.after_step(moment)

    def _checked(self, losses: dict[str, float]) -> dict[str, float]:
        if not math.isfinite(losses["total"]):
            raise UserError(
                f"the loss of stage '{self.stage.name}' of task {self.place.task} is {losses['total']} after epoch "
                f"{self.epoch + 1}; a smaller learning rate than {self.stage.schedule.lr} may help"
            )
        return losses

    def _snapshot(self) -> Snapshot:
        tensors = {
            **prefixed("net", self.stage.net.state_dict()),
            **prefixed("hooks", self.hooks.state_dict()),
            **prefixed("optimizer", optimizer_state(self.optimizer)),
            **prefixed("tally", self.tally.state()),
        }
        return Snapshot(self.epoch, self.step, tensors, self.precision.state_dict())

    def _go_on(self) -> None:
        """From the last snapshot of this stage, if there is one."""
        snapshot = self.engine.journal.partial(self.place)
        if snapshot is None:
            return
        with self.engine.journal.fitting():
            self.epoch, self.step = snapshot.epoch, snapshot.step
            restore_module(self.stage.net, below("net", snapshot.tensors))
            restore_module(self.hooks, below("hooks", snapshot.tensors))
            restore_optimizer(self.optimizer, below("optimizer", snapshot.tensors))
            self.tally.restore(below("tally", snapshot.tensors), self.engine.device)
            self.precision.load_state_dict(snapshot.scalars)
