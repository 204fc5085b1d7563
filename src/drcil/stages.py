"""What methods hand to the engine: stages, schedules, outputs and losses. Plain data, no loop, no device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from .data.imageset import ImageSet, Int64
from .heads.base import Logits
from .keys import numpy_generator
from .nets.features import Features


class Output(NamedTuple):
    """What a net makes of a batch."""

    logits: Logits
    features: Features


def fused_logits(output: Output) -> Tensor:
    """What the head answers: the usual scores."""
    return output.logits.fused


@dataclass(frozen=True)
class Readout:
    """A named way to turn a trained method into class scores: whose output is read, and how."""

    net: nn.Module
    scores: Callable[[Output], Tensor] = fused_logits
    """A function, or a part of the method where reading needs something learnt."""


class Batch(NamedTuple):
    """One step's labels and the ids of its images (the images themselves are the net's business)."""

    labels: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Term:
    """One named part of a loss: a mean over ``count`` samples (None: the whole batch), and its weight.

    The count keeps a mean over part of a batch right when the batch is spread over processes, and when an
    epoch's average is reported.
    """

    value: Tensor
    weight: float = 1.0
    count: Tensor | None = None


Losses = Mapping[str, Term]
Objective = Callable[[Output, Mapping[str, Output], Batch], Losses]
Sampler = Callable[[Int64, int], Int64]
"""(labels, key) → positions of one epoch, in order."""


def shuffle(labels: Int64, key: int) -> Int64:
    """Every image once, in random order."""
    return numpy_generator(key).permutation(len(labels)).astype(np.int64)


class Schedule(BaseModel):
    """How long and how fast a stage learns. The learning rate is constant within an epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(ge=1)
    lr: float = Field(gt=0)
    batch_size: int = Field(default=128, ge=1)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    curve: Literal["cosine", "steps", "constant"] = "cosine"
    milestones: tuple[int, ...] = ()
    """Epochs at which ``steps`` multiplies the rate by ``factor``."""
    factor: float = Field(default=0.1, gt=0, le=1)
    lr_end: float = Field(default=0.0, ge=0)
    """Where ``cosine`` ends."""
    warmup: int = Field(default=0, ge=0)
    """Epochs of linear rise from ``warmup_lr`` before the curve begins."""
    warmup_lr: float = Field(default=0.0, ge=0)

    def scaled(self, scale: float) -> Schedule:
        """The same schedule over ``scale`` times the epochs (at least one), milestones and warm-up with it."""
        if scale == 1:
            return self
        epochs = max(1, round(self.epochs * scale))
        return self.model_copy(
            update={
                "epochs": epochs,
                # Never before the first epoch is over, or a very short stage would not learn at its rate at all.
                "milestones": tuple(max(1, round(milestone * scale)) for milestone in self.milestones),
                "warmup": min(round(self.warmup * scale), epochs - 1),
            }
        )

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch (from 0)."""
        if epoch < self.warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * epoch / self.warmup
        if self.curve == "cosine":
            progress = (epoch - self.warmup) / (self.epochs - self.warmup)
            return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * progress)) / 2
        if self.curve == "steps":
            return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        return self.lr


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate of their own (a factor on the schedule's) and a weight decay of their own."""

    parameters: Sequence[nn.Parameter]
    lr_factor: float = 1.0
    weight_decay: float | None = None


class Moment(NamedTuple):
    """When a hook is called: epoch and step within it (from 0), the schedule's rate, a generator keyed to this step."""

    epoch: int
    step: int
    lr: float
    generator: torch.Generator


class StepHook(nn.Module):
    """For the rare thing an objective cannot say: clamp a weight, let a branch decay, add gradient noise.

    State belongs in buffers: the engine keeps them with its snapshots.
    """

    def before_step(self, moment: Moment) -> None:
        """After the backward pass, before the optimiser; gradients are as the objective made them."""

    def after_step(self, moment: Moment) -> None:
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
    groups: Sequence[Group] | None = None
    """What is trained; None: every parameter of the net that requires a gradient, in one group."""
    frozen: Sequence[nn.Module] = ()
    """Modules of the net kept in evaluation mode. Said here, never guessed from ``requires_grad``."""
    sampler: Sampler = shuffle
    augment: bool = True
    """Whether training images take the stream's augmentation (False: the test view)."""
    hooks: Sequence[StepHook] = ()
