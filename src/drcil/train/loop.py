"""The training loop of one stage."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import distributed
from ..data.image_set import Int64
from ..errors import UserError
from ..nets.net import Output
from ..seeding import KeyPart, batch_shard, generator, set_torch_seed
from ..stages import Batch, Losses, Stage, Step, Term
from .batches import StageBatches, StepInput, StepPart
from .events import EpochDone, StageStarted, StepDone
from .feature_cache import NetOnCachedFeatures, modules_in_eval_mode
from .optimizers import make_optimizer, parameters_of, set_rate
from .snapshots import Snapshot, StageKey, optimizer_state, restore_module, restore_optimizer, strip_prefix, with_prefix
from .sync_norm import SyncNorms

if TYPE_CHECKING:
    from .engine import TrainingEngine

_SMALL = 64
"""Images per process below which batch normalisation is synchronised by default."""


class LossMeter:
    """Averages loss terms over the samples of an epoch."""

    def __init__(self, seconds: float = 0.5) -> None:
        """``seconds``: at least this long between two averages that ``recent`` fetches from the device."""
        self.seconds = seconds
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._fetched = time.monotonic()

    def add(self, losses: Losses, sums: Tensor, counts: Tensor) -> None:
        """Add one step: for each term the sum over its samples, and their number."""
        for name, value, count in zip(losses, sums.float().unbind(), counts.float().unbind(), strict=True):
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts[name] + count if name in self._counts else count
            self._weights[name] = losses[name].weight

    def recent(self) -> dict[str, float] | None:
        """The averages so far, if they were not fetched a short time ago."""
        if time.monotonic() - self._fetched < self.seconds:
            return None
        self._fetched = time.monotonic()
        return self.averages()

    def averages(self) -> dict[str, float]:
        """Each term's average over its samples, and ``total``, their weighted sum."""
        names = list(self._sums)
        stacked = torch.stack([self._sums[name] / self._counts[name].clamp(min=1) for name in names])
        means = dict(zip(names, stacked.tolist(), strict=True))
        means["total"] = sum(self._weights[name] * means[name] for name in names)
        return means

    def state(self) -> dict[str, Tensor]:
        """Sum, count and weight of every term, for a snapshot."""
        return {
            name: torch.tensor([float(self._sums[name]), float(self._counts[name]), weight], dtype=torch.float64)
            for name, weight in self._weights.items()
        }

    def restore(self, state: dict[str, Tensor], device: torch.device) -> None:
        for name, entries in state.items():
            self._sums[name], self._counts[name] = entries[:2].float().to(device).unbind()
            self._weights[name] = float(entries[2])


class StageTrainer:
    """Trains the net of a stage. Every draw is keyed by epoch and step, so that training can resume at any step."""

    def __init__(self, engine: TrainingEngine, stage: Stage, key: StageKey, cached_features: Tensor | None) -> None:
        """``cached_features``: what the net's head reads of every image; then nets take positions in the data."""
        self.engine, self.stage, self.key, self.cached_features = engine, stage, key, cached_features
        # It has a state where it scales the loss; every stage begins with a fresh one.
        self.scaler = engine.make_scaler()
        self.hooks = nn.ModuleList(stage.hooks)
        self.optimizer = make_optimizer(stage, fused=engine.device.type != "mps" and not self.scaler.is_enabled())
        self.meter = LossMeter()
        self.epoch, self.step = 0, 0
        self._restore()
        self.batches = StageBatches(engine, stage, key.task, cached_features)
        if engine.settings.compile:
            # Nets of earlier stages count towards the number of variants after which torch gives up compiling.
            torch.compiler.reset()
        self.module = engine.compiled(self._on_cached_features(stage.net))
        if distributed.size() > 1:
            # With this option the layout of gradients in messages is fixed. Otherwise it changes after the first step,
            # and a resumed stage would round sums differently.
            self.module = DistributedDataParallel(self.module, find_unused_parameters=True)
        self.teachers = {
            name: engine.compiled(self._on_cached_features(engine.inference.frozen(teacher)))
            for name, teacher in stage.teachers.items()
        }
        synchronised = engine.settings.sync_batchnorm
        if synchronised is None:
            synchronised = stage.schedule.batch_size // distributed.size() < _SMALL
        self.norms = SyncNorms(stage.net, synchronised)
        self.labels = torch.from_numpy(stage.data.labels).to(engine.device)
        self.rows = torch.from_numpy(stage.data.ids).to(engine.device)

    def _on_cached_features(self, net: nn.Module) -> nn.Module:
        return net if self.cached_features is None else NetOnCachedFeatures(net, self.cached_features)

    def run(self) -> None:
        """Train from the current epoch and step to the end."""
        stage, task, schedule, first = self.stage, self.key.task, self.stage.schedule, self.epoch
        stage.net.train()
        for part in modules_in_eval_mode(stage):
            part.eval()
        for self.epoch in range(first, schedule.epochs):
            started = time.monotonic()
            batches = self.batches.split(self._path())
            if self.epoch == first:
                images = sum(len(batch) for batch in batches)
                self.engine.listener(StageStarted(task, stage.name, schedule.epochs, first, images))
            with self.norms.installed():
                rate = self._run_epoch(batches)
            # Running statistics that processes took from their shards differ.
            distributed.broadcast_tensors(stage.net.buffers())
            losses = self._check_finite(self.meter.averages())
            accuracy = self.engine.accuracy_after(self.epoch, stage.net)
            seconds = time.monotonic() - started
            measured_on = self.engine.measured_on
            self.engine.listener(EpochDone(task, stage.name, self.epoch, rate, losses, seconds, accuracy, measured_on))
            self.step, self.meter = 0, LossMeter()

    def _run_epoch(self, batches: list[Int64]) -> float:
        """Take the remaining steps of the epoch; returns the rate of its first step."""
        stage, key, path, schedule = self.stage, self.key, self._path(), self.stage.schedule
        for step_input in self.batches.read(path, batches, self.epoch, self.step):
            rate = schedule.rate(self.epoch, self.step, len(batches))
            set_rate(self.optimizer, rate, self.epoch)
            self._take_step(step_input, Step(self.epoch, self.step, rate, generator(*path, self.step, "hooks")))
            self.step += 1
            self.engine.listener(StepDone(key.task, stage.name, self.epoch, step_input.total, self.meter.recent()))
            if self.engine.snapshots.due():
                self.engine.snapshots.save_partial(key, self._snapshot())
        return schedule.rate(self.epoch, 0, len(batches))

    def _path(self) -> tuple[KeyPart, ...]:
        """What all draws of the epoch are keyed by."""
        key = self.key
        return (self.engine.seed, "task", key.task, key.position, key.stage, "epoch", self.epoch)

    def _take_step(self, step_input: StepInput, step: Step) -> None:
        self.optimizer.zero_grad()
        self._backward(step_input)
        clip = self.stage.schedule.clip
        if self.stage.hooks or clip is not None:
            self.scaler.unscale_(self.optimizer)
        with torch.no_grad():
            for hook in self.stage.hooks:
                hook.before_step(step)
        if clip is not None:
            # After the hooks, so that the bound holds for the gradients that the optimiser sees.
            nn.utils.clip_grad_norm_(parameters_of(self.optimizer), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            for hook in self.stage.hooks:
                hook.after_step(step)

    def _backward(self, step_input: StepInput) -> None:
        """Compute the gradients of a step, part by part, and add its losses to the meter."""
        self.norms.is_shared = step_input.is_shared
        sums = []
        for part in step_input.parts:
            is_reduced = step_input.is_shared and part is step_input.parts[-1]
            # For every part anew, so that an image meets the same random numbers in any part.
            set_torch_seed(*self._path(), self.step, "net")
            with batch_shard(part.shard), self._synchronisation(is_reduced):
                losses, part_sums, counts = self._backward_part(part, step_input)
            sums.append(part_sums)
        total = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        self.meter.add(losses, distributed.all_reduce(total) if step_input.is_shared else total, counts)

    def _synchronisation(self, is_reduced: bool) -> AbstractContextManager[None]:
        """Within the block a backward pass adds up gradients over processes, or does not."""
        if isinstance(self.module, DistributedDataParallel) and not is_reduced:
            return self.module.no_sync()
        return nullcontext()

    def _backward_part(self, part: StepPart, step_input: StepInput) -> tuple[Losses, Tensor, Tensor]:
        """Add the gradients of some images of the batch.

        Returns their loss terms and, for each term, the sum over its samples here and their number in the whole batch.
        """
        losses = self._losses(part)
        loss: Tensor | None = None
        sums, counts = [], []
        for term in losses.values():
            weighted = term.value if term.weight == 1.0 else term.weight * term.value
            count = total = self._count(term, part.positions)
            if len(part.positions) < step_input.total:
                total = self._count(term, step_input.positions)
                # A term without a sample in the whole batch counts for nothing.
                weighted = weighted * (count / total.clamp(min=torch.finfo(total.dtype).tiny))
            loss = weighted if loss is None else loss + weighted
            sums.append(term.value.detach() * count)
            counts.append(total)
        if loss is None:
            raise ValueError("an objective returned no loss term")
        if step_input.is_shared:
            # Torch averages gradients over processes; those of shares are to be added up.
            loss = loss * distributed.size()
        self.scaler.scale(loss).backward()
        return losses, torch.stack(sums), torch.stack(counts)

    def _losses(self, part: StepPart) -> Losses:
        """The loss terms of some images."""
        forward = self.engine.inference.answer
        with torch.no_grad():
            teacher_outputs = {name: forward(teacher, part.images) for name, teacher in self.teachers.items()}
        output: Output = forward(self.module, part.images)
        batch = Batch(self.labels[part.positions], self.rows[part.positions])
        return self.stage.objective(output, teacher_outputs, batch)

    def _count(self, term: Term, positions: Tensor) -> Tensor:
        """How many samples a term is a mean over, among the images at these positions."""
        dtype = torch.promote_types(term.value.dtype, torch.float32)
        if term.over is None:
            # Filled on the device: a copy from the host would wait for it.
            return torch.full((), len(positions), dtype=dtype, device=term.value.device)
        return term.over(self.labels[positions]).sum().to(dtype)

    def _check_finite(self, losses: dict[str, float]) -> dict[str, float]:
        if not math.isfinite(losses["total"]):
            raise UserError(
                f"the loss of stage '{self.stage.name}' of task {self.key.task} is {losses['total']} after epoch "
                f"{self.epoch + 1}; a smaller learning rate than {self.stage.schedule.lr} may help"
            )
        return losses

    def _snapshot(self) -> Snapshot:
        tensors = {
            **with_prefix("net", self.stage.net.state_dict()),
            **with_prefix("hooks", self.hooks.state_dict()),
            **with_prefix("optimizer", optimizer_state(self.optimizer)),
            **with_prefix("losses", self.meter.state()),
        }
        return Snapshot(self.epoch, self.step, tensors, self.scaler.state_dict())

    def _restore(self) -> None:
        """Continue from the last snapshot of this stage, if there is one."""
        snapshot = distributed.broadcast_object(self.engine.snapshots.partial(self.key))
        if snapshot is None:
            return
        with self.engine.snapshots.fitting():
            self.epoch, self.step = snapshot.epoch, snapshot.step
            restore_module(self.stage.net, strip_prefix("net", snapshot.tensors))
            restore_module(self.hooks, strip_prefix("hooks", snapshot.tensors))
            restore_optimizer(self.optimizer, strip_prefix("optimizer", snapshot.tensors))
            self.meter.restore(strip_prefix("losses", snapshot.tensors), self.engine.device)
            self.scaler.load_state_dict(snapshot.scalars)
