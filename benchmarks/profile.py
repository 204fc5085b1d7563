"""Where the time of a fusion epoch goes, and how far it is from what the machine can do."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as profiler

from drcil.data.augment import Augment, Draws
from drcil.data.augment.pipeline import Step
from drcil.train.events import EpochDone, Event, StageStarted

from .footprint import activations
from .scene import Scene
from .timing import EpochClock, seconds_of
from .training import BATCH, as_net, fusion_before, matmul_flops, step_flops, timed_epoch

_MARK = "drcil: augmentation"
_KINDS = {
    "convolution": re.compile("conv", re.IGNORECASE),
    "batch normalisation": re.compile("batch_?norm", re.IGNORECASE),
    "ReLU, addition, shortcut": re.compile("relu|threshold|clamp_min|aten::add_?$|pad|slice", re.IGNORECASE),
}
"""Kinds of operations, by their names."""
AUGMENTATION, OPTIMISER, OTHER = "augmentation", "optimiser", "other operations and Python"
_COPIED = 256 << 20


def marked(augmentation: Augment) -> Augment:
    """The same augmentation, whose steps can be told apart in a profile."""

    def mark(step: Step) -> Step:
        def within(images: Tensor, draws: Draws) -> Tensor:
            with record_function(_MARK):
                return step(images, draws)

        return within

    return replace(augmentation, steps=tuple(mark(step) for step in augmentation.steps))


class ProfiledEpoch(EpochClock):
    """Profiles the epoch it times, and nothing before or after it: setting up a stage is no part of its seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.record = profiler(activities=[ProfilerActivity.CPU])

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, StageStarted):
            self.record.start()
        elif isinstance(event, EpochDone):
            self.record.stop()

    def shares(self) -> dict[str, float]:
        """Of the epoch's time, in percent, by kind of work."""
        times: Counter[str] = Counter()
        for event in self.record.events() or ():  # type: ignore[no-untyped-call]
            times[kind_of(event)] += event.self_cpu_time_total / 1e6
        known = {kind: 100 * times[kind] / self.seconds for kind in (*_KINDS, AUGMENTATION, OPTIMISER)}
        return {**known, OTHER: 100 - sum(known.values())}


@dataclass(frozen=True)
class Profile:
    """An epoch of the fusion stage, and the limits of the machine beside it."""

    shares: dict[str, float]
    """Of the epoch's time, in percent, by kind of work."""
    images_per_second: float
    gflop_per_image: float
    """Of the trained net and both teachers."""
    mib_per_image: float
    """Activations of the trained net that wait for the backward pass."""
    matmul_gflops: float
    copy_gib: float
    """GiB per second that a large copy reads and writes."""

    @property
    def limit(self) -> float:
        """Images per second if all arithmetic ran like a matrix product, and activations were free."""
        return self.matmul_gflops / self.gflop_per_image

    @property
    def memory_limit(self) -> float:
        """Images per second if every activation were written and read once like a copy, and arithmetic were free."""
        return 1024 * self.copy_gib / (2 * self.mib_per_image)


def profile_epoch(scene: Scene) -> Profile:
    """Profile one epoch of the stage that ``fusion-speed`` times."""
    clock = EpochClock()
    learner, _, stage = fusion_before(scene, clock)
    learner.engine.augmentation = marked(learner.engine.augmentation)
    unwatched = timed_epoch(learner, stage, clock)
    learner.engine.listener = watched = ProfiledEpoch()
    timed_epoch(learner, stage, watched)
    forward_and_backward = step_flops(as_net(stage.net)) / BATCH
    return Profile(
        shares=watched.shares(),
        images_per_second=len(stage.data) / min(unwatched, watched.seconds),
        # A backward pass takes twice the forward one; each teacher is one forward pass.
        gflop_per_image=forward_and_backward * (1 + len(stage.teachers) / 3) / 1e9,
        mib_per_image=activations(stage, BATCH) / BATCH / 2**20,
        matmul_gflops=matmul_flops() / 1e9,
        copy_gib=_copying() / 2**30,
    )


def kind_of(event: Any) -> str:
    """The kind of work an operation belongs to: by what it is part of, else by its name."""
    ancestor = event
    while ancestor is not None:
        if ancestor.name == _MARK:
            return AUGMENTATION
        if ancestor.name.startswith("Optimizer."):
            return OPTIMISER
        ancestor = ancestor.cpu_parent
    return next((kind for kind, names in _KINDS.items() if names.search(event.name)), OTHER)


def _copying() -> float:
    """Bytes per second read and written by a copy larger than any cache."""
    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * _COPIED / min(seconds_of(lambda: target.copy_(source)) for _ in range(5))
