"""Benchmarks of several processes: what a step takes beside another process, and what they send each other."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from drcil.process import configure

from .rows import Measurement, benchmark
from .scene import Scene
from .timing import EpochClock
from .training import fusion_before, timed_epoch

LOCAL = 64
"""Images of a process in each step."""
_TIMEOUT = timedelta(seconds=300)


class Steps(NamedTuple):
    """Seconds of a step, and bytes that a process hands over in it; so many of them are gradients."""

    seconds: float
    handed_over: int
    gradients: int


@benchmark(
    "two-processes",
    "a step of MAFDRC's fusion in two processes of one thread, relative to one such process with as many images each",
    target=1.5,
    better="lower",
    unit="×",
)
def two_processes(scene: Scene) -> Measurement:
    one, two = steps_of(1, scene.directory), steps_of(2, scene.directory)
    detail = f"{1000 * two.seconds:.0f} against {1000 * one.seconds:.0f} ms, {LOCAL} images a process"
    return Measurement(two.seconds / one.seconds, detail)


@benchmark(
    "bytes-sent",
    "what a process hands over in a step to be added up, relative to its gradients",
    target=1.1,
    better="lower",
    unit="×",
)
def bytes_sent(scene: Scene) -> Measurement:
    two = steps_of(2, scene.directory)
    return Measurement(two.handed_over / two.gradients, f"{two.handed_over:,} against {two.gradients:,} bytes a step")


@cache
def steps_of(size: int, data: Path) -> Steps:
    """An epoch of the same stage by so many processes, whose batches are as many times as large."""
    with tempfile.TemporaryDirectory() as place:
        spawn(_member, (size, str(data), place), nprocs=size)  # type: ignore[no-untyped-call]
        return Steps(*json.loads((Path(place) / "steps").read_text()))


def _member(rank: int, size: int, data: str, place: str) -> None:
    configure(threads=1)
    if size > 1:
        dist.init_process_group("gloo", f"file://{place}/meeting", _TIMEOUT, size, rank)
    clock = EpochClock()
    learner, _, stage = fusion_before(Scene(Path(data)), clock)
    # A low rate: what matters is the time of a step, and the nets are untrained.
    schedule = stage.schedule.model_copy(update={"batch_size": size * LOCAL, "lr": 1e-5})
    stage = replace(stage, schedule=schedule)
    seen = _count_bytes()
    timed_epoch(learner, stage, clock)
    # The first step warms up, and the last batch is smaller.
    steps = [later - earlier for earlier, later in pairwise(clock.ends[:-1])]
    gradients = sum(4 * parameter.numel() for parameter in stage.net.parameters() if parameter.requires_grad)
    if rank == 0:
        found = [median(steps), seen["bytes"] // len(clock.ends), gradients]
        (Path(place) / "steps").write_text(json.dumps(found))
    if size > 1:
        dist.destroy_process_group()


def _count_bytes() -> dict[str, int]:
    """Count from now on what is handed over to be added up or gathered."""
    seen = {"bytes": 0}

    def counting(function: Any, place: int) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            tensor: torch.Tensor = arguments[place]
            seen["bytes"] += tensor.numel() * tensor.element_size()
            return function(*arguments, **options)

        return counted

    dist.all_reduce = counting(dist.all_reduce, 0)
    dist.all_gather = counting(dist.all_gather, 1)
    return seen
