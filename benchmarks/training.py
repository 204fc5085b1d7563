"""Benchmarks of training: a fusion stage, the arithmetic of a step, its data, and whether late tasks cost more."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from drcil.learner import Learner
from drcil.methods.maf import MafSettings
from drcil.nets.net import Net
from drcil.stages import Moment, Stage, StepHook
from drcil.streams.stream import Task

from .reference import PlainFusion, PlainNet, pillow_images
from .rows import Measurement, benchmark
from .scene import Scene, learner_before, stages_of
from .timing import EpochClock, alternate, seconds_of

ROUNDS = 2
BATCH = 128
_SIDE = 2048
"""Of the square matrices whose product stands for what the processor can do."""


def fusion_before(scene: Scene, clock: EpochClock) -> tuple[Learner, Task, Stage]:
    """MAFDRC's fusion of task 2, an epoch of about 1,000 images, new ones and memory in the protocol's proportion.

    In the form of the paper's text, which the plain program has; the published form takes the same passes.
    """
    learner, task = learner_before(scene.few(73), "mafdrc-text", 2, "290", clock)
    return learner, task, stages_of(learner, task)["fusion"]


def plain_fusion(learner: Learner, task: Task, stage: Stage) -> PlainFusion:
    """The same stage as others would program it."""
    settings = learner.method.settings
    assert isinstance(settings, MafSettings)
    return PlainFusion(
        student=PlainNet.like(as_net(stage.net)),
        previous=PlainNet.like(as_net(stage.teachers["previous"])),
        adapted=PlainNet.like(as_net(stage.teachers["adapted"])),
        old_classes=task.old,
        counts=torch.from_numpy(stage.data.counts(task.total)),
        settings=settings,
    )


def timed_epoch(learner: Learner, stage: Stage, clock: EpochClock) -> float:
    """Train a stage of one epoch; the seconds of that."""
    with learner.engine.task(2):
        learner.engine.fit(stage)
    return clock.seconds


def fresh_process() -> ProcessPoolExecutor:
    """A process as torch finds it: in this one, the C library has been told to keep freed memory."""
    return ProcessPoolExecutor(
        1,
        multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(torch.get_num_threads(),),
    )


@benchmark(
    "fusion-speed",
    "fusion stage of mafdrc-text, ResNet-32, batch 128, augmentation auto: images/s, ours ÷ plain program",
    target=2.5,
    better="higher",
    unit="×",
)
def fusion_speed(scene: Scene) -> Measurement:
    clock = EpochClock()
    learner, task, stage = fusion_before(scene, clock)
    reference = plain_fusion(learner, task, stage)
    view = pillow_images(stage.data, task.spec.padding, task.spec.mean, task.spec.std)
    with fresh_process() as elsewhere:
        ours, plain = alternate(
            ROUNDS,
            lambda: timed_epoch(learner, stage, clock),
            lambda: elsewhere.submit(reference.epoch, view).result(),
        )
    images = len(stage.data)
    return Measurement(plain / ours, f"{images / ours:.0f} against {images / plain:.0f} images/s")


class Stopwatch(StepHook):
    """Looks at the clock when a net is called and when its gradients are there."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.called: list[float] = []
        self.done: list[float] = []
        self._handle = net.register_forward_pre_hook(self._note)

    def _note(self, net: nn.Module, inputs: Any) -> None:
        self.called.append(time.perf_counter())

    def before_step(self, moment: Moment) -> None:
        self.done.append(time.perf_counter())

    def stop(self) -> None:
        self._handle.remove()


class Epoch(NamedTuple):
    """Seconds of an epoch: all of it, what went by before the net was called, and each forward and backward pass."""

    total: float
    data: float
    passes: list[float]


class EpochTimes(NamedTuple):
    """Epochs of a net that learns without teachers, and what they are held against."""

    epochs: list[Epoch]
    flops: float
    """Of the forward and backward pass over a full batch."""
    peak: float
    """FLOP/s of a matrix product, measured in between."""


@lru_cache(maxsize=1)
def first_task(scene: Scene) -> EpochTimes:
    """Epochs of task 1, about 1,000 images each."""
    clock = EpochClock()
    learner, task = learner_before(scene.few(102), "mafdrc", 1, "290", clock)
    stage = stages_of(learner, task)["first"]
    epochs: list[Epoch] = []
    peak = 0.0
    for _ in range(ROUNDS):
        watch = Stopwatch(stage.net)
        total = timed_epoch(learner, replace(stage, hooks=[watch]), clock)
        watch.stop()
        passes = [done - called for called, done in zip(watch.called, watch.done, strict=True)]
        waits = zip([clock.begun, *clock.ends], watch.called, strict=False)
        epochs.append(Epoch(total, sum(called - before for before, called in waits), passes))
        peak = max(peak, matmul_flops())
    return EpochTimes(epochs, step_flops(as_net(stage.net)), peak)


def step_flops(net: Net, count: int = 2) -> float:
    """Floating point operations of a forward and backward pass over a batch, scaled up from a few images."""
    with FlopCounterMode(display=False) as counter:
        net(torch.rand(count, 3, 32, 32)).logits.fused.sum().backward()
    return float(counter.get_total_flops()) * BATCH / count


def matmul_flops() -> float:
    """FLOP/s of a large matrix product, the best of several."""
    matrix = torch.rand(_SIDE, _SIDE)
    return 2 * _SIDE**3 / min(seconds_of(lambda: matrix @ matrix) for _ in range(5))


@benchmark(
    "step-flops",
    "forward and backward pass of the trained ResNet-32, batch 128: GFLOP/s ÷ that of a large matrix product",
    target=0.5,
    better="higher",
    unit="of the peak",
)
def flops_of_a_step(scene: Scene) -> Measurement:
    epochs, flops, peak = first_task(scene)
    reached = flops / min(median(epoch.passes) for epoch in epochs)
    return Measurement(reached / peak, f"{reached / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s")


@benchmark(
    "data-share",
    "share of a training step without teachers that goes to data and augmentation, ResNet-32, auto",
    target=6.0,
    better="lower",
    unit="%",
)
def data_share(scene: Scene) -> Measurement:
    epoch = min(first_task(scene).epochs)
    return Measurement(100 * epoch.data / epoch.total, f"{1000 * epoch.data:.0f} of {1000 * epoch.total:.0f} ms")


@benchmark(
    "task-growth",
    "seconds to learn task 10 ÷ task 2 with mafdrc at equal data, evaluation excluded",
    target=1.1,
    better="lower",
    unit="×",
)
def task_growth(scene: Scene) -> Measurement:
    few = scene.few(16)

    def learn(number: int) -> float:
        learner, task = learner_before(few, "mafdrc", number, "90")
        assert learner.memory.images is not None
        assert len(learner.memory.images) == 90
        return seconds_of(lambda: learner.learn(task))

    early, late = alternate(ROUNDS + 1, lambda: learn(2), lambda: learn(10))
    return Measurement(late / early, f"{late:.2f} against {early:.2f} s")


def as_net(net: nn.Module) -> Net:
    assert isinstance(net, Net)
    return net
