"""Benchmarks of memory: what a run needs, whether freed memory is used again, size of the head in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from drcil.data.image_set import ArraySource
from drcil.errors import UserError
from drcil.heads import DynamicResidualHead, LinearHead
from drcil.process import configure, keep_freed_memory
from drcil.stages import Stage

from . import Measurement, benchmark
from .workload import Workload, activations, learner_before, stages_of

_MIB = 2**20
_STEPS = 2

_STATUS = Path("/proc/self/status")

_BARE = """
import torch
layer = torch.nn.Conv2d(3, 16, 3)
layer(torch.rand(2, 3, 32, 32)).sum().backward()
torch.rand(512, 512) @ torch.rand(512, 512)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
"""Peak memory of torch alone with its kernels loaded; prints KiB."""


@benchmark(
    "memory",
    "peak resident memory of a CIFAR-100 run of mafdrc beyond images, nets, activations and bare torch",
    target=300.0,
    better="lower",
    unit="MiB",
)
def memory(workload: Workload) -> Measurement:
    if not _STATUS.exists():
        raise UserError(f"peak memory is read from {_STATUS}, which this system does not have")
    code = f"from benchmarks.memory import report; report({str(workload.directory)!r})"
    parts: dict[str, float] = json.loads(run_code(code))
    parts["torch"] = int(run_code(_BARE)) / 1024
    peak = parts.pop("peak")
    needed = ", ".join(f"{name} {size:.0f}" for name, size in parts.items())
    return Measurement(peak - sum(parts.values()), f"peak {peak:.0f}, of which {needed}")


_LARGE, _TIMES = 10_000_000, 20
"""Numbers of a large tensor; how often it is made and freed."""


@benchmark(
    "pages-fetched",
    f"memory that {_TIMES} large tensors, each freed before the next, fetch from the system, relative to one of them",
    target=1.0,
    better="lower",
    unit="×",
)
def pages_fetched(workload: Workload) -> Measurement:
    if find_spec("resource") is None:
        raise UserError("this system does not count the pages that a process fetches")
    pages = int(run_code("from benchmarks.memory import report_pages; report_pages()"))
    tensor = 4 * _LARGE
    fetched = pages * os.sysconf("SC_PAGE_SIZE")
    return Measurement(fetched / tensor, f"{fetched / _MIB:.0f} MiB for tensors of {tensor / _MIB:.0f} MiB")


def report_pages() -> None:
    """Print the number of fetched pages, after a first round."""
    import resource

    def fetched() -> int:
        before: int = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(_TIMES):
            torch.ones(_LARGE)
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    keep_freed_memory()
    fetched()
    print(fetched())


def run_code(code: str, **environment: str) -> str:
    """The output of Python code in a new process."""
    # With the module path of this process, not the current directory.
    program = f"import sys; sys.path[:] = {sys.path!r}; {code.lstrip()}"
    command = [sys.executable, "-P", "-c", program]
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if process.returncode:
        last = process.stderr.strip().rpartition("\n")[2]
        raise UserError(f"the process whose memory was to be measured ended with code {process.returncode} ({last})")
    return process.stdout


def report(directory: str) -> None:
    """In a new process: train a few steps of task 2 of a run and print MiB as JSON."""
    configure()
    workload = Workload(Path(directory))
    learner, task = learner_before(workload.dataset, "mafdrc", 2, "2000")
    stage = stages_of(learner, task)["fusion"]
    batch = stage.schedule.batch_size
    few = stage.data.subset(np.arange(_STEPS * batch))
    with learner.engine.task(2):
        learner.engine.fit(replace(stage, data=few))
    learner.engine.features(stage.net, task.new.subset(np.arange(2 * learner.engine.settings.inference_batch)))
    peak = _peak()
    sources = (workload.dataset.train.source, workload.dataset.test.source)
    images = sum(source.pixels.nbytes for source in sources if isinstance(source, ArraySource))
    sizes = {"peak": peak, "images": images, "nets": _nets(stage), "activations": activations(stage, batch)}
    print(json.dumps({name: size / _MIB for name, size in sizes.items()}))


def _peak() -> int:
    # Not getrusage: its maximum includes that of the parent process.
    lines = _STATUS.read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _nets(stage: Stage) -> int:
    """The student with gradients and momentum, and each teacher with its frozen copy."""
    student, *teachers = (_bytes(net) for net in (stage.net, *stage.teachers.values()))
    return 3 * student + 2 * sum(teachers)


def _bytes(net: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in net.state_dict().values())


@benchmark(
    "drc-inference",
    "tensors in which the folded dynamic residual head differs from a plain linear head after ten tasks",
    target=0.0,
    better="lower",
    unit="tensors",
)
def drc_inference(workload: Workload) -> Measurement:
    folded, plain = (_after_ten_tasks(head).fold() for head in (DynamicResidualHead(64), LinearHead(64)))
    ours, theirs = (Counter(tuple(tensor.shape) for tensor in head.state_dict().values()) for head in (folded, plain))
    differences = ((ours - theirs) + (theirs - ours)).total() + (type(folded) is not nn.Linear)
    return Measurement(float(differences), f"{type(folded).__name__} of {', '.join(map(str, ours))}")


def _after_ten_tasks(head: DynamicResidualHead | LinearHead) -> DynamicResidualHead | LinearHead:
    for _ in range(10):
        head.grow(10)
    return head
