"""What methods hand to the engine: stages, schedules, outputs and losses. Plain data, no loop, no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .data.sources.imageset import ImageSet
from .nets.output import Output
from .schedules import Schedule
from .streams.samplers import Sampler, shuffle


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


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate of their own (a factor on the schedule's) and a weight decay of their own."""

    parameters: Sequence[nn.Parameter]
    lr_factor: float = 1.0
    weight_decay: float | None = None
    first_lr_factor: float | None = None
    """The factor of the first epoch, where it is another than that of all later ones."""


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
        """After the backward pass, before the optimiser; gradients are as the objective made them, not yet clipped."""

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
