"""``python -m benchmarks.scale``: what a run of ImageNet-1000 takes on some GPUs, from a few constants.

The stages are those of the method, found by a rehearsal. A step takes as long as its slowest part: decoding, which goes
on beside it, or computing and then summing the gradients. ``docs/scale.md`` tells what it comes to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import ceil, log2

import numpy as np
import torch

from drcil.data.datasets.dataset import Dataset
from drcil.data.datasets.imagenet import SPEC
from drcil.data.sources.blank import BlankSource
from drcil.data.sources.imageset import ImageSet, ImageShape
from drcil.methods.rehearsal import RehearsalEngine
from drcil.models.model import ModelOptions, new_model
from drcil.stages import Stage
from drcil.streams.memory import Memory
from drcil.streams.stream import make_stream

from .scale_constants import CONSTANTS, SIZE, measured

STREAM, METHOD, COPIES = "imagenet1000-b0-10", "mafdrc", 3
TRAIN, TEST, CLASSES = 1_281_167, 50_000, 1000
FLOAT = 4


@dataclass(frozen=True)
class Rates:
    """The constants by name."""

    decode: float
    herd_class: float
    herd_choice: float
    index: float
    scan: float
    status: float
    verify: float
    listing: float
    parameters: float
    channels: float
    forward: float
    activations: float
    gpu: float
    launch: float
    augment: float
    cores: float
    machine: float
    inner: float
    outer: float
    latency: float

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Rates:
        return cls(**{field.name: values[field.name] for field in fields(cls)})


RATES = Rates.of({name: constant.value for name, constant in CONSTANTS.items()})


@dataclass(frozen=True)
class Work:
    """A stage: the images of an epoch, and how many frozen nets see them beside the one that is trained."""

    epochs: int
    images: int
    batch: int
    teachers: int


@dataclass(frozen=True)
class TaskWork:
    """What a task asks for: stages, features of its new images, exemplars of each new class, and test images."""

    stages: tuple[Work, ...]
    new: int
    classes: int
    quota: int
    test: int


@dataclass(frozen=True)
class Cost:
    """Seconds of a run by what they go to."""

    training: float
    features: float
    herding: float
    evaluation: float
    start: float

    @property
    def total(self) -> float:
        return self.training + self.features + self.herding + self.evaluation + self.start


def step_seconds(work: Work, gpus: int, rates: Rates = RATES) -> float:
    """One step of a stage: the batch is the schedule's, shared by all GPUs."""
    share = work.batch / gpus
    compute = share * ((3 + work.teachers) * rates.forward / rates.gpu + rates.augment)
    decoding = share * rates.decode / rates.cores
    return max(decoding, max(compute, rates.launch) + all_reduce_seconds(FLOAT * rates.parameters, gpus, rates))


def all_reduce_seconds(size: float, gpus: int, rates: Rates = RATES) -> float:
    """The sum of so many bytes on all GPUs: around a ring within each machine, then around one of machines.

    None of it is hidden behind the backward pass, though most of it can be.
    """
    inside, machines = min(gpus, rates.machine), max(1.0, gpus / rates.machine)
    return size * (_ring(inside) / rates.inner + _ring(machines) / rates.outer) + rates.latency * log2(gpus)


def _ring(members: float) -> float:
    return 2 * (members - 1) / members


def pass_seconds(images: int, gpus: int, rates: Rates = RATES) -> float:
    """Images through a frozen net, each by one of the GPUs."""
    return ceil(images / gpus) * max(rates.forward / rates.gpu, rates.decode / rates.cores)


def gather_seconds(images: int, gpus: int, rates: Rates = RATES) -> float:
    """The features of all images brought to every process."""
    bandwidth = rates.inner if gpus <= rates.machine else rates.outer
    return images * FLOAT * rates.channels * (gpus - 1) / gpus / bandwidth


def herding_seconds(classes: int, quota: int, rates: Rates = RATES) -> float:
    """Every process chooses the same from the same features, so more of them make no difference."""
    return classes * (rates.herd_class + quota * rates.herd_choice)


def start_seconds(rates: Rates = RATES) -> float:
    """Before the first step: listing, a first look at test images, and the identity twice: to keep and to compare."""
    return (TRAIN + TEST) * (rates.index + 2 * rates.status) + TEST * rates.verify


def cost(tasks: Sequence[TaskWork], gpus: int, rates: Rates = RATES) -> Cost:
    """The seconds of a run."""
    stages = [stage for task in tasks for stage in task.stages]
    return Cost(
        training=sum(own.epochs * ceil(own.images / own.batch) * step_seconds(own, gpus, rates) for own in stages),
        features=sum(pass_seconds(task.new, gpus, rates) + gather_seconds(task.new, gpus, rates) for task in tasks),
        herding=sum(herding_seconds(task.classes, task.quota, rates) for task in tasks),
        evaluation=sum(pass_seconds(task.test, gpus, rates) for task in tasks),
        start=start_seconds(rates),
    )


def gpu_bytes(batch: int, gpus: int, rates: Rates = RATES) -> dict[str, float]:
    """Memory of one GPU in the fusion stage: a net with gradients and momenta, two teachers, and activations."""
    net = FLOAT * rates.parameters
    return {"nets": (3 + COPIES - 1) * net, "activations": ceil(batch / gpus) * rates.activations}


def process_bytes(new: int, rates: Rates = RATES) -> dict[str, float]:
    """Memory of one process on its machine: what grows with the number of images. Rows and labels are kept in the
    dataset's order and in the stream's."""
    files = TRAIN + TEST
    return {
        "listing": files * rates.listing,
        "rows and labels": files * 2 * 16,
        "features": new * FLOAT * rates.channels,
    }


class _Noting(RehearsalEngine):
    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def fit(self, stage: Stage) -> None:
        self.works.append(Work(stage.schedule.epochs, len(stage.data), stage.schedule.batch_size, len(stage.teachers)))


@cache
def imagenet_tasks(method: str = METHOD) -> tuple[TaskWork, ...]:
    """The tasks of ImageNet-1000 as a method learns them."""

    def split(count: int) -> ImageSet:
        rows = np.arange(count, dtype=np.int64)
        return ImageSet(BlankSource(count, 3, SIZE), rows, rows % CLASSES)

    names = tuple(f"class {number}" for number in range(CLASSES))
    stream = make_stream(STREAM, Dataset("imagenet1000", names, split(TRAIN), split(TEST), SPEC))
    shape = ImageShape.of(stream.dataset.train.source)
    # A small backbone: stages do not depend on it, and it is copied in every task.
    model = new_model(ModelOptions(method, backbone="resnet-digits"), SPEC, shape, stream.budget, STREAM)
    memory, tasks = Memory(stream.budget), []
    for task in stream:
        engine = _Noting()
        model.method.learn(task if memory.images is None else replace(task, memory=memory.images), engine)
        memory.update(task.new, task.total, lambda images: torch.ones(1, 1).expand(len(images), 1))
        quota = stream.budget.quota(task.total) or 0
        tasks.append(TaskWork(tuple(engine.works), len(task.new), len(task.classes), quota, len(task.test)))
    return tuple(tasks)


def with_batch(tasks: Sequence[TaskWork], batch: int) -> list[TaskWork]:
    """The same with another batch size."""
    return [replace(task, stages=tuple(replace(stage, batch=batch) for stage in task.stages)) for task in tasks]


def tables() -> str:
    """The tables of ``docs/scale.md``."""
    tasks = imagenet_tasks()
    batch = tasks[0].stages[0].batch
    cases = [(gpus, batch) for gpus in (1, 8, 64)] + [(64, 8 * batch)]
    costs = [cost(with_batch(tasks, size), gpus) for gpus, size in cases]
    heads = [f"{gpus} GPU{'s' if gpus > 1 else ''}, batch {size}" for gpus, size in cases]
    lines = [
        _row("hours", heads),
        _row("---", ["---"] * len(cases)),
        *(_row(field.name, [_short(getattr(own, field.name) / 3600) for own in costs]) for field in fields(Cost)),
        _row("**total**", [f"**{_short(own.total / 3600)}**" for own in costs]),
        _row("times as fast", [_short(costs[0].total / own.total) for own in costs]),
        "",
        _row("MB", heads),
        _row("---", ["---"] * len(cases)),
    ]
    on_gpus = [gpu_bytes(size, gpus) for gpus, size in cases]
    lines += [_row(f"GPU: {name}", [f"{own[name] / 1e6:,.0f}" for own in on_gpus]) for name in on_gpus[0]]
    held = process_bytes(max(task.new for task in tasks))
    lines += [_row(f"process: {name}", [f"{size / 1e6:,.0f}"] * len(cases)) for name, size in held.items()]
    return "\n".join(lines)


def constants(now: Mapping[str, float] | None = None) -> str:
    """The constants as a table; with those that were measured now."""
    lines = [_row("constant", ["value", "", "what", *(["now"] if now else [])])]
    lines += [_row("---", ["---"] * (4 if now else 3))]
    for name, own in CONSTANTS.items():
        again = [f"{now[name]:.3g}" if name in now else ""] if now else []
        lines.append(_row(f"`{name}`", [f"{own.value:.4g} {own.unit}".strip(), own.origin, own.what, *again]))
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


if __name__ == "__main__":
    print(constants(measured() if "--measure" in sys.argv[1:] else None), tables(), sep="\n\n")
