"""What methods hand to the engine: Stage, Schedule, Batch, Term, hooks, the Engine protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from .data.image_set import ImageSet
from .nets.net import Output
from .settings import BATCH, EVERY
from .streams.samplers import Sampler, shuffle


class Schedule(BaseModel):
    """Epochs, batch size, optimiser and learning rate of a stage."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(ge=EVERY.least, le=EVERY.most)
    lr: float = Field(gt=0)
    batch_size: int = Field(default=128, ge=BATCH.least, le=BATCH.most)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    """Whether ``sgd`` looks ahead along its momentum."""
    weight_decay: float = Field(default=0.0, ge=0)
    decay: Literal["all", "weights"] = "all"
    """What weight decay acts on: every parameter; or, as usual for transformers, only parameters of two or more
    dimensions, except those that a module lists in its method ``no_weight_decay``, such as positions and tokens.
    """
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of all gradients of a step together; longer ones are shortened to it. None: any."""
    curve: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    changes: Literal["epoch", "step"] = "epoch"
    """How often the rate follows its curve: it is constant within an epoch, or only within a step."""
    milestones: tuple[int, ...] = ()
    """Epochs at which ``steps`` multiplies the rate by ``factor``."""
    factor: float = Field(default=0.1, gt=0, le=1)
    lr_end: float = Field(default=0.0, ge=0)
    """Where ``cosine`` and ``linear`` end."""
    warmup: int = Field(default=0, ge=0)
    """Epochs of linear rise from ``warmup_lr`` before the curve begins."""
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    """The same as a share of all epochs; the longer of both counts."""
    warmup_lr: float = Field(default=0.0, ge=0)
    augment_growth: float = Field(default=0.0, ge=0, le=1)
    """The share of the epochs over which augmentation grows: the first one shows no image augmented, then more and more
    are, and after these epochs all.
    """

    @model_validator(mode="after")
    def _check_nesterov(self) -> Schedule:
        if self.nesterov and self.optimizer == "sgd" and not self.momentum:
            raise ValueError("'nesterov' needs a momentum")
        return self

    def scaled(self, scale: float) -> Schedule:
        """The same schedule over ``scale`` times the epochs (at least one), milestones and warm-up with it.

        A warm-up keeps at least one epoch, where that leaves another to train in.
        """
        if scale == 1:
            return self
        epochs = max(1, round(self.epochs * scale))
        warmup = min(max(1, round(self.warmup * scale)), epochs - 1) if self.warmup else 0
        # Of a rise over several epochs one is left: by epochs it would be one at ``warmup_lr``, and no rise.
        is_cut_to_one = warmup == 1 < self.warmup
        return self.model_copy(
            update={
                "epochs": epochs,
                "changes": "step" if is_cut_to_one else self.changes,
                # Never before the first epoch is over, or a very short stage would not learn at its rate at all.
                "milestones": tuple(max(1, round(milestone * scale)) for milestone in self.milestones),
                "warmup": warmup,
            }
        )

    def decay_of(self, dimensions: int) -> float:
        """The weight decay of a parameter with this many dimensions that no module lists in ``no_weight_decay``."""
        return self.weight_decay if dimensions > 1 or self.decay == "all" else 0.0

    def rate(self, epoch: int, step: int = 0, steps: int = 1) -> float:
        """The learning rate of a step (from 0) of the ``steps`` in an epoch (from 0)."""
        # In the middle of the step, so that none is lost to a rate of zero.
        elapsed = epoch + (step + 0.5) / steps if self.changes == "step" else epoch
        # A stage that is over before its warm-up would never learn at its rate.
        warmup = max(min(self.warmup, self.epochs - 1), self.warmup_share * self.epochs)
        if elapsed < warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * elapsed / warmup
        progress = (elapsed - warmup) / (self.epochs - warmup) if elapsed > warmup else 0.0
        if self.curve == "cosine":
            return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * progress)) / 2
        if self.curve == "linear":
            return self.lr_end + (self.lr - self.lr_end) * (1 - progress)
        if self.curve == "steps":
            return self.lr * self.factor ** sum(elapsed >= milestone for milestone in self.milestones)
        return self.lr

    def augmented(self, epoch: int) -> float:
        """The chance of an image to be augmented in an epoch (from 0)."""
        growing = self.augment_growth * self.epochs
        return epoch / growing if epoch < growing else 1.0


class Batch(NamedTuple):
    """Labels and ids of the images of a step; only the net sees the images."""

    labels: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Term:
    """One named part of a loss: a mean over samples of the batch, and its weight.

    Where processes share a batch, each computes the mean over its samples. The engine weighs them by ``over``, so that
    their sum is the mean over the whole batch.
    """

    value: Tensor
    weight: float = 1.0
    over: Callable[[Tensor], Tensor] | None = None
    """Labels to the weight of each sample in the mean, such as ``lambda labels: labels < old``; None: 1 each."""


Losses = Mapping[str, Term]
Objective = Callable[[Output, Mapping[str, Output], Batch], Losses]


@dataclass(frozen=True)
class ParamGroup:
    """Parameters with a separate learning rate (a factor on the schedule's) and weight decay."""

    parameters: Sequence[nn.Parameter]
    lr_factor: float = 1.0
    weight_decay: float | None = None
    first_lr_factor: float | None = None
    """The factor of the first epoch, where it is another than that of all later ones."""


class Step(NamedTuple):
    """Epoch, step within it (both from 0), the schedule's rate, and a generator seeded by the step."""

    epoch: int
    step: int
    lr: float
    generator: torch.Generator


class StepHook(nn.Module):
    """For what an objective cannot express: clamp a weight, let a branch decay, add gradient noise.

    State belongs in buffers: the engine saves them in snapshots and with the result of a finished stage.
    """

    def before_step(self, step: Step) -> None:
        """After the backward pass, before the optimiser; gradients are as the objective made them, not yet clipped."""

    def after_step(self, step: Step) -> None:
        """After the optimiser."""


@dataclass(frozen=True)
class Stage:
    """One training phase: which net, on which images, against which objective, by which schedule."""

    name: str
    net: nn.Module
    data: ImageSet
    objective: Objective
    schedule: Schedule
    teachers: Mapping[str, nn.Module] = field(default_factory=dict)
    """Frozen nets whose outputs the objective receives; the engine folds them and runs them without gradient."""
    groups: Sequence[ParamGroup] | None = None
    """What is trained; None: every parameter of the net that requires a gradient, in one group."""
    frozen: Sequence[nn.Module] = ()
    """Modules of the net in evaluation mode. Set explicitly, never inferred from ``requires_grad``."""
    sampler: Sampler = shuffle
    augment: bool = True
    """Whether training images take the stream's augmentation (False: the test view)."""
    hooks: Sequence[StepHook] = ()
    reads_maps: bool = False
    """Whether the objective reads maps or tokens of features (``stages``, ``last``). Those of a frozen backbone are not
    given otherwise, unless the head reads them.
    """


class Engine(Protocol):
    """What a method may ask of the engine."""

    rehearsing: bool
    """Whether nothing is trained and features are not those of the images, so that long computations can be omitted."""

    def fit(self, stage: Stage) -> None: ...

    def features(self, net: nn.Module, images: ImageSet) -> Tensor: ...
