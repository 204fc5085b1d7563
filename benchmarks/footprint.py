"""The benchmark of memory: what a run takes beyond what it cannot do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from drcil.data.sources.imageset import ArraySource
from drcil.errors import UserError
from drcil.process import configure
from drcil.stages import Stage

from .rows import Measurement, benchmark
from .scene import Scene, learner_before, stages_of

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
"""Torch and nothing else, once its kernels are there; prints KiB."""


@benchmark(
    "memory",
    "peak resident memory of a CIFAR-100 run of mafdrc beyond images, nets, activations and bare torch",
    target=300.0,
    better="lower",
    unit="MiB",
)
def memory(scene: Scene) -> Measurement:
    if not _STATUS.exists():
        raise UserError(f"peak memory is read from {_STATUS}, which this system does not have")
    code = f"from benchmarks.footprint import report; report({str(scene.directory)!r})"
    parts: dict[str, float] = json.loads(printed(code))
    parts["torch"] = int(printed(_BARE)) / 1024
    peak = parts.pop("peak")
    needed = ", ".join(f"{name} {size:.0f}" for name, size in parts.items())
    return Measurement(peak - sum(parts.values()), f"peak {peak:.0f}, of which {needed}")


def printed(code: str, **environment: str) -> str:
    """What a program prints in a process of its own."""
    # Modules are found where this process finds them, and not in whatever the current directory is.
    program = f"import sys; sys.path[:] = {sys.path!r}; {code.lstrip()}"
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise UserError(f"the process whose memory was to be measured ended with code {ended.returncode} ({last})")
    return ended.stdout


def report(directory: str) -> None:
    """In a process of its own: go through task 2 of a run, a few steps of it, and print MiB as JSON."""
    configure()
    scene = Scene(Path(directory))
    learner, task = learner_before(scene.dataset, "mafdrc", 2, "2000")
    stage = stages_of(learner, task)["fusion"]
    batch = stage.schedule.batch_size
    few = stage.data.subset(np.arange(_STEPS * batch))
    with learner.engine.task(2):
        learner.engine.fit(replace(stage, data=few))
    learner.engine.features(stage.net, task.new.subset(np.arange(2 * learner.engine.settings.inference_batch)))
    peak = _peak()
    sources = (scene.dataset.train.source, scene.dataset.test.source)
    images = sum(source.pixels.nbytes for source in sources if isinstance(source, ArraySource))
    sizes = {"peak": peak, "images": images, "nets": _nets(stage), "activations": activations(stage, batch)}
    print(json.dumps({name: size / _MIB for name, size in sizes.items()}))


def _peak() -> int:
    # Not getrusage: its maximum begins with that of the process which started this one.
    lines = _STATUS.read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _nets(stage: Stage) -> int:
    """The student with gradients and momentum, and each teacher with its frozen copy."""
    student, *teachers = (_bytes(net) for net in (stage.net, *stage.teachers.values()))
    return 3 * student + 2 * sum(teachers)


def _bytes(net: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in net.state_dict().values())


def activations(stage: Stage, batch: int) -> int:
    """What the student's forward pass over a batch keeps for the backward pass."""
    images = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return saved_bytes(stage.net, images)


def saved_bytes(net: nn.Module, images: Tensor) -> int:
    """What a forward pass keeps for the backward pass, each storage counted once, and without the net's own."""
    own = {tensor.untyped_storage().data_ptr() for tensor in net.state_dict().values()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        # Named, so that everything noted stays alive and no address is used twice.
        output = net(images)
    del output
    return sum(kept.values())
