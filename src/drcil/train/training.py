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

from ..data.sources.imageset import Int64, Mask, indices
from ..data.sources.reader import batches_together, cut
from ..errors import UserError
from ..keys import Draws, KeyPart, Share, derive, generator, numpy_generator
from ..stages import Moment, Stage
from .events import EpochDone, StageStarted, StepDone
from .exchange import Exchange
from .gradients import Gradients
from .kept import OnFeatures, still_modules
from .optimizers import make_optimizer, parameters_of, set_rate
from .snapshot import Place, Snapshot, below, optimizer_state, prefixed, restore_module, restore_optimizer
from .spread import Spread
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
        self.spread = Spread(engine.team, engine.settings.accumulate)
        self.spread.require_enough(stage)
        if engine.settings.compile:
            # Nets of earlier stages count towards the number of variants after which torch gives up compiling.
            torch.compiler.reset()
        module, self.stepper = engine.fabric.setup(engine.compiled(self._asked(stage.net)), self.optimizer)
        teachers = {
            name: engine.compiled(self._asked(engine.inference.frozen(teacher)))
            for name, teacher in stage.teachers.items()
        }
        self.exchange = None if engine.team.alone else Exchange(parameters_of(self.optimizer))
        self.gradients = Gradients(engine, stage, module, teachers, self.spread, self.exchange)
        self.reader = engine.inference.reader(stage.data)

    def _asked(self, net: nn.Module) -> nn.Module:
        """The net, as its steps ask it."""
        return net if self.kept is None else OnFeatures(net, self.kept)

    def run(self) -> None:
        """Train from the epoch and step that was reached to the end."""
        try:
            self._run()
        finally:
            if self.exchange is not None:
                self.exchange.close()

    def _run(self) -> None:
        stage, task, schedule = self.stage, self.place.task, self.stage.schedule
        stage.net.train()
        for part in still_modules(stage):
            part.eval()
        images = len(self._positions(self._path()))
        self.engine.listener(StageStarted(task, stage.name, schedule.epochs, self.epoch, images))
        while self.epoch < schedule.epochs:
            started = time.monotonic()
            with self.gradients.norms.installed():
                rate = self._run_epoch()
            losses = self._checked(self.tally.averages())
            accuracy = self.engine.watched_accuracy(stage.net, self.epoch)
            seconds = time.monotonic() - started
            measured_on = self.engine.measured_on
            self.engine.listener(EpochDone(task, stage.name, self.epoch, rate, losses, seconds, accuracy, measured_on))
            self.epoch, self.step, self.tally = self.epoch + 1, 0, Tally()

    def _run_epoch(self) -> float:
        """The steps of the epoch that are left; returns the rate that it began with."""
        stage, place, path, schedule = self.stage, self.place, self._path(), self.stage.schedule
        pieces = self._pieces(path)
        for images, where, total in self._batches_left(path, pieces):
            rate = schedule.rate(self.epoch, self.step, len(pieces))
            set_rate(self.optimizer, rate, self.epoch)
            self._take_step(
                images, where, total, Moment(self.epoch, self.step, rate, generator(*path, self.step, "hooks"))
            )
            self.step += 1
            losses = self.tally.peek()
            self.engine.listener(StepDone(place.task, stage.name, self.epoch, total, losses))
            if self.engine.journal.due():
                self.engine.journal.keep_partial(place, self._snapshot())
        return schedule.rate(self.epoch, 0, len(pieces))

    def _path(self) -> tuple[KeyPart, ...]:
        """What all draws of the epoch are keyed by."""
        place = self.place
        return (self.engine.seed, "task", place.task, place.position, place.stage, "epoch", self.epoch)

    def _positions(self, path: tuple[KeyPart, ...]) -> Int64:
        """Where in the stage's data the images of the epoch are, in order."""
        return self.stage.sampler(self.stage.data.labels, derive(*path, "order"))

    def _pieces(self, path: tuple[KeyPart, ...]) -> list[Int64]:
        """The same, cut into batches."""
        positions, size = self._positions(path), self.stage.schedule.batch_size
        return cut(positions, size, join_single=self._too_small(positions, size))

    def _batches_left(self, path: tuple[KeyPart, ...], pieces: list[Int64]) -> Iterator[tuple[Tensor, Tensor, int]]:
        """For each step that is left: what the net is asked by, where in the stage's data it is from, and how many
        images all processes have together.

        Crops of files are keyed by where in the epoch they are taken. The rest is augmented several steps together, and
        keyed by where the first of them stands, so that a stage which goes on in their midst prepares them all again
        and leaves out those it has taken.
        """
        stage, size, begun = self.stage, self.stage.schedule.batch_size, self.step
        sizes = [len(piece) for piece in pieces]
        mine = [piece[self.spread.own(len(piece))] for piece in pieces]
        # Sent to the device once, not with every chunk.
        everywhere = indices(np.concatenate(mine) if mine else np.empty(0, dtype=np.int64), self.engine.device)
        where = torch.split(everywhere, [len(piece) for piece in mine])
        if self.kept is not None:
            yield from ((place, place, total) for place, total in zip(where[begun:], sizes[begun:], strict=True))
            return
        together = batches_together(stage.data.source, size)
        starts = range(begun - begun % together, len(pieces), together)
        key = derive(*path, "view") if stage.augment and self.engine.augmentation.crops_files else None
        own = [self.spread.chunk(sizes[start : start + together]) for start in starts]
        chunks = [np.concatenate(mine[start : start + together]) for start in starts]
        at = [start * size + places for start, places in zip(starts, own, strict=True)]
        augmented = self._augmented(path, sum(sizes))
        read = self.reader.read(chunks, key, at, augmented)
        for start, places, epoch_places, pixels in zip(starts, own, at, read, strict=True):
            totals = sizes[start : start + together]
            chosen = None if augmented is None else np.flatnonzero(augmented[epoch_places])
            drawn_for = places if chosen is None else places[chosen]
            share = Share(sum(totals), None if len(drawn_for) == sum(totals) else torch.from_numpy(drawn_for))
            draws = Draws(generator(*path, start, "augment"), share) if stage.augment else None
            seen = where[start : start + together]
            views = torch.split(self.engine.augment(pixels, draws, chosen), [len(place) for place in seen])
            for images, place, total in islice(zip(views, seen, totals, strict=True), max(0, begun - start), None):
                yield self.engine.inference.normalised(images), place, total

    def _augmented(self, path: tuple[KeyPart, ...], images: int) -> Mask | None:
        """Which images of the epoch are augmented, by their places in it; None: all."""
        chance = self.stage.schedule.augmented(self.epoch)
        return None if chance == 1 else numpy_generator(*path, "augmented").random(images) < chance

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

    def _take_step(self, images: Tensor, where: Tensor, total: int, moment: Moment) -> None:
        self.stepper.zero_grad()
        self.gradients.add_up(images, where, total, (*self._path(), self.step, "net"), self.tally)
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
        snapshot = self.engine.team.leaders(self.engine.journal.partial(self.place))
        if snapshot is None:
            return
        with self.engine.journal.fitting():
            self.epoch, self.step = snapshot.epoch, snapshot.step
            restore_module(self.stage.net, below("net", snapshot.tensors))
            restore_module(self.hooks, below("hooks", snapshot.tensors))
            restore_optimizer(self.optimizer, below("optimizer", snapshot.tensors))
            self.tally.restore(below("tally", snapshot.tensors), self.engine.device)
            self.precision.load_state_dict(snapshot.scalars)
