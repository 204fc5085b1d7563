"""Benchmarks of training: a fusion stage, a step, its data, late tasks, what follows training; and a profile."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils.flop_counter import FlopCounterMode

from drcil.data.augment import Augment, Draws
from drcil.data.augment.pipelines import Step as AugmentStep
from drcil.learner import Learner
from drcil.methods.maf import MafSettings
from drcil.nets.net import Net
from drcil.stages import Stage, Step, StepHook
from drcil.streams.stream import Task
from drcil.train.events import EpochDone, Event, StageStarted

from . import Measurement, alternate, benchmark, seconds_of
from .references import PlainFusion, PlainNet, pillow_images
from .workload import EpochClock, Untrained, Workload, activations, learner_before, normalised_views, stages_of

ROUNDS = 2
BATCH = 128
_SIDE = 2048
"""Side of the square matrices whose product is the peak rate of the processor."""


def fusion_before(workload: Workload, clock: EpochClock) -> tuple[Learner, Task, Stage]:
    """MAFDRC's fusion stage in task 2: one epoch of about 1,000 new images and exemplars in the protocol's proportion.

    It is the form of the paper's text, like the plain program; the published form has the same passes.
    """
    learner, task = learner_before(workload.few(73), "mafdrc-text", 2, "290", clock)
    return learner, task, stages_of(learner, task)["fusion"]


def plain_fusion(learner: Learner, task: Task, stage: Stage) -> PlainFusion:
    """The same stage in plain PyTorch."""
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
    """Train a stage of one epoch; returns its seconds."""
    with learner.engine.task(2):
        learner.engine.fit(stage)
    return clock.seconds


def fresh_process() -> ProcessPoolExecutor:
    """A new process with torch's defaults: in this one, the C library keeps freed memory."""
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
def fusion_speed(workload: Workload) -> Measurement:
    clock = EpochClock()
    learner, task, stage = fusion_before(workload, clock)
    reference = plain_fusion(learner, task, stage)
    view = pillow_images(stage.data, task.spec.padding, task.spec.mean, task.spec.std)
    with fresh_process() as process:
        ours, plain = alternate(
            ROUNDS,
            lambda: timed_epoch(learner, stage, clock),
            lambda: process.submit(reference.epoch, view).result(),
        )
    images = len(stage.data)
    return Measurement(plain / ours, f"{images / ours:.0f} against {images / plain:.0f} images/s")


class Stopwatch(StepHook):
    """Records when the net is called and when its gradients are computed."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.called: list[float] = []
        self.done: list[float] = []
        self._handle = net.register_forward_pre_hook(self._note)

    def _note(self, net: nn.Module, inputs: Any) -> None:
        self.called.append(time.perf_counter())

    def before_step(self, step: Step) -> None:
        self.done.append(time.perf_counter())

    def stop(self) -> None:
        self._handle.remove()


class Epoch(NamedTuple):
    """Seconds of an epoch: total, before the net was called, and of each forward and backward pass."""

    total: float
    data: float
    passes: list[float]


class EpochTimes(NamedTuple):
    """Epochs without teachers, and the rate of a matrix product."""

    epochs: list[Epoch]
    flops: float
    """Of the forward and backward pass over a full batch."""
    peak: float
    """FLOP/s of a matrix product, measured in between."""


@lru_cache(maxsize=1)
def first_task(workload: Workload) -> EpochTimes:
    """Epochs of task 1, about 1,000 images each."""
    clock = EpochClock()
    learner, task = learner_before(workload.few(102), "mafdrc", 1, "290", clock)
    stage = stages_of(learner, task)["first"]
    epochs: list[Epoch] = []
    peak = 0.0
    for _ in range(ROUNDS):
        watch = Stopwatch(stage.net)
        total = timed_epoch(learner, replace(stage, hooks=[watch]), clock)
        watch.stop()
        passes = [done - called for called, done in zip(watch.called, watch.done, strict=True)]
        waits = zip([clock.start, *clock.ends], watch.called, strict=False)
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
def flops_of_a_step(workload: Workload) -> Measurement:
    epochs, flops, peak = first_task(workload)
    reached = flops / min(median(epoch.passes) for epoch in epochs)
    return Measurement(reached / peak, f"{reached / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s")


@benchmark(
    "data-share",
    "share of a training step without teachers that goes to data and augmentation, ResNet-32, auto",
    target=6.0,
    better="lower",
    unit="%",
)
def data_share(workload: Workload) -> Measurement:
    epoch = min(first_task(workload).epochs)
    return Measurement(100 * epoch.data / epoch.total, f"{1000 * epoch.data:.0f} of {1000 * epoch.total:.0f} ms")


@benchmark(
    "task-growth",
    "seconds to learn task 10 ÷ task 2 with mafdrc at equal data, evaluation excluded",
    target=1.1,
    better="lower",
    unit="×",
)
def task_growth(workload: Workload) -> Measurement:
    few = workload.few(16)

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


_CLOSING_ROUNDS = 2


@benchmark(
    "after-task",
    "herding, class means and evaluation of iCaRL's task 10 ÷ one bare forward pass over the same images",
    target=1.3,
    better="lower",
    unit="×",
)
def after_task(workload: Workload) -> Measurement:
    few = workload.few(train=100, test=5)
    learner, task = learner_before(few, "icarl", 10, "500")
    engine, memory = learner.engine, learner.memory.images
    assert memory is not None
    views = [
        normalised_views(pixels, task.spec)
        for images in (task.new, memory, task.test)
        for pixels in torch.split(images.read(), engine.settings.inference_batch)
    ]
    folded = engine.inference.frozen(learner.method.net)

    def forward_only() -> None:
        with torch.inference_mode():
            for view in views:
                folded(view)

    def finish_task() -> float:
        learner, task = learner_before(few, "icarl", 10, "500")
        learner.engine = Untrained(learner.engine)

        def work() -> None:
            learner.learn(task)
            learner.rank(task.test)

        return seconds_of(work)

    ours, forward = alternate(_CLOSING_ROUNDS, finish_task, lambda: seconds_of(forward_only))
    images = sum(map(len, views))
    return Measurement(ours / forward, f"{ours:.2f} against {forward:.2f} s for {images} images")


_MARK = "drcil: augmentation"
_KINDS = {
    "convolution": re.compile("conv", re.IGNORECASE),
    "batch normalisation": re.compile("batch_?norm", re.IGNORECASE),
    "ReLU, addition, shortcut": re.compile("relu|threshold|clamp_min|aten::add_?$|pad|slice", re.IGNORECASE),
}
"""Kinds of operations, by their names in a profile."""
AUGMENTATION, OPTIMISER, OTHER = "augmentation", "optimiser", "other operations and Python"
_COPY_BYTES = 256 << 20


def mark_augmentation(augmentation: Augment) -> Augment:
    """The same augmentation with steps that can be recognised in a profile."""

    def mark(step: AugmentStep) -> AugmentStep:
        def marked_step(images: Tensor, draws: Draws) -> Tensor:
            with record_function(_MARK):
                return step(images, draws)

        return marked_step

    return replace(augmentation, steps=tuple(mark(step) for step in augmentation.steps))


class ProfiledEpoch(EpochClock):
    """Profiles the epoch it times, without the set-up of the stage."""

    def __init__(self) -> None:
        super().__init__()
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, StageStarted):
            self.profiler.start()
        elif isinstance(event, EpochDone):
            self.profiler.stop()

    def shares(self) -> dict[str, float]:
        """Percent of the epoch's time by kind of work."""
        times: Counter[str] = Counter()
        for event in self.profiler.events() or ():
            times[_kind_of(event)] += event.self_cpu_time_total / 1e6
        known = {kind: 100 * times[kind] / self.seconds for kind in (*_KINDS, AUGMENTATION, OPTIMISER)}
        return {**known, OTHER: 100 - sum(known.values())}


def _kind_of(event: Any) -> str:
    """The kind of work of an operation: by the operation it is part of, otherwise by its name."""
    ancestor = event
    while ancestor is not None:
        if ancestor.name == _MARK:
            return AUGMENTATION
        if ancestor.name.startswith("Optimizer."):
            return OPTIMISER
        ancestor = ancestor.cpu_parent
    return next((kind for kind, names in _KINDS.items() if names.search(event.name)), OTHER)


def profile_epoch(workload: Workload) -> dict[str, float]:
    """Profile one epoch of the stage that ``fusion-speed`` times, with the limits of the machine.

    The limit by arithmetic assumes that all of it runs like a matrix product and activations cost nothing; the limit by
    activations that each is written and read once like a copy and arithmetic costs nothing.
    """
    clock = EpochClock()
    learner, _, stage = fusion_before(workload, clock)
    learner.engine.augmentation = mark_augmentation(learner.engine.augmentation)
    unprofiled = timed_epoch(learner, stage, clock)
    learner.engine.listener = profiled = ProfiledEpoch()
    timed_epoch(learner, stage, profiled)
    # A backward pass takes twice the forward pass; each teacher is one forward pass.
    gflop_per_image = step_flops(as_net(stage.net)) / BATCH * (1 + len(stage.teachers) / 3) / 1e9
    mib_per_image = activations(stage, BATCH) / BATCH / 2**20
    matmul_gflops, copy_gib = matmul_flops() / 1e9, _copy_rate() / 2**30
    return {
        **{f"{kind}, %": share for kind, share in profiled.shares().items()},
        "images/s": len(stage.data) / min(unprofiled, profiled.seconds),
        "GFLOP per image": gflop_per_image,
        "matrix product, GFLOP/s": matmul_gflops,
        "limit by arithmetic, images/s": matmul_gflops / gflop_per_image,
        "activations per image, MiB": mib_per_image,
        "copy, GiB/s": copy_gib,
        "limit by activations, images/s": 1024 * copy_gib / (2 * mib_per_image),
    }


def _copy_rate() -> float:
    """Bytes per second read and written by a copy larger than any cache."""
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / min(seconds_of(lambda: target.copy_(source)) for _ in range(5))
