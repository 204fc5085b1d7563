"""Benchmarks of several processes: the time of a step, and what processes send each other."""

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

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from drcil import distributed
from drcil.process import configure
from drcil.train import loop

from . import Measurement, benchmark
from .training import fusion_before, timed_epoch
from .workload import EpochClock, Workload

_LOCAL_BATCH = 64
"""Images of a process in each step."""
_TIMEOUT = timedelta(seconds=300)


class Steps(NamedTuple):
    """Seconds of a step, bytes that a process sends in it, and bytes of its gradients."""

    seconds: float
    sent: int
    gradients: int


@benchmark(
    "two-processes",
    "a step of MAFDRC's fusion in two processes of one thread, relative to one such process with as many images each",
    target=1.5,
    better="lower",
    unit="×",
)
def two_processes(workload: Workload) -> Measurement:
    single, pair = steps_of(1, workload.directory), steps_of(2, workload.directory)
    detail = f"{1000 * pair.seconds:.0f} against {1000 * single.seconds:.0f} ms, {_LOCAL_BATCH} images a process"
    return Measurement(pair.seconds / single.seconds, detail)


@benchmark(
    "bytes-sent",
    "what a process sends in a step, relative to its gradients",
    target=1.1,
    better="lower",
    unit="×",
)
def bytes_sent(workload: Workload) -> Measurement:
    steps = steps_of(2, workload.directory)
    return Measurement(steps.sent / steps.gradients, f"{steps.sent:,} against {steps.gradients:,} bytes a step")


@cache
def steps_of(size: int, data: Path) -> Steps:
    """An epoch of the same stage with ``size`` processes and batches that are ``size`` times as large."""
    with tempfile.TemporaryDirectory() as directory:
        spawn(_member, (size, str(data), directory), nprocs=size)
        return Steps(*json.loads((Path(directory) / "steps").read_text()))


def _member(rank: int, size: int, data: str, directory: str) -> None:
    configure(threads=1)
    if size > 1:
        distributed.init_group(
            "gloo", init_method=f"file://{directory}/rendezvous", timeout=_TIMEOUT, world_size=size, rank=rank
        )
    clock = EpochClock()
    learner, _, stage = fusion_before(Workload(Path(data)), clock)
    # A low rate, since the nets are untrained.
    schedule = stage.schedule.model_copy(update={"batch_size": size * _LOCAL_BATCH, "lr": 1e-5})
    stage = replace(stage, schedule=schedule)
    _count_sent_bytes()
    timed_epoch(learner, stage, clock)
    # The first step warms up, and the last batch is smaller.
    steps = [later - earlier for earlier, later in pairwise(clock.ends[:-1])]
    gradients = sum(4 * parameter.numel() for parameter in stage.net.parameters() if parameter.requires_grad)
    if rank == 0:
        figures = [median(steps), _sent_bytes // len(clock.ends), gradients]
        (Path(directory) / "steps").write_text(json.dumps(figures))
    if size > 1:
        distributed.destroy_group()


_sent_bytes = 0
"""What this process has sent."""


def _count(tensor: Tensor) -> None:
    global _sent_bytes
    _sent_bytes += tensor.numel() * tensor.element_size()


class _CountingDataParallel(DistributedDataParallel):
    """Sends gradients by ``dist.all_reduce``, where they are counted, and counts buffers that are broadcast."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A lambda: torch checks annotations of hooks, and does not read them as strings.
        self.register_comm_hook(None, lambda group, bucket: allreduce_hook(group, bucket))

    def _distributed_broadcast_coalesced(self, tensors: list[Tensor], *arguments: Any) -> None:
        for tensor in tensors:
            _count(tensor)
        super()._distributed_broadcast_coalesced(tensors, *arguments)  # type: ignore[no-untyped-call]


def _count_sent_bytes() -> None:
    """Count from now on what this process sends while it trains."""

    def counted(function: Any, position: int) -> Any:
        def count_and_call(*arguments: Any, **options: Any) -> Any:
            _count(arguments[position])
            return function(*arguments, **options)

        return count_and_call

    dist.all_reduce = counted(dist.all_reduce, 0)
    dist.all_gather = counted(dist.all_gather, 1)
    vars(loop)["DistributedDataParallel"] = _CountingDataParallel
