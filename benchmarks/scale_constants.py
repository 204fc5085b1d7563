"""What the model of a large run is made from: numbers that were measured or counted here, and assumptions.

``python -m benchmarks.scale --measure`` measures the former again, in processor time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from drcil.data.sources.filelist import FileList, directory_names
from drcil.data.sources.files import FileSource, damaged
from drcil.data.sources.imageset import Draw
from drcil.data.sources.statuses import statuses
from drcil.nets.build import build_backbone
from drcil.streams.herding import herd

from .footprint import saved_bytes
from .jpeg import write_photographs
from .listing import make_tree

Origin = Literal["measured", "counted", "assumed"]
SIZE, CLASS_IMAGES = 224, 1281


@dataclass(frozen=True)
class Constant:
    """A number of the model, and where it comes from."""

    value: float
    unit: str
    origin: Origin
    what: str


CONSTANTS = {
    "decode": Constant(
        1.6e-3, "s/image", "measured", "a JPEG of 500×375 read, decoded, cropped, scaled to 224; one core"
    ),
    "herd_class": Constant(
        4.5e-3, "s", "measured", "herding of 1,281 features of 512 numbers: before the first choice"
    ),
    "herd_choice": Constant(0.14e-3, "s", "measured", "herding: each choice among them"),
    "index": Constant(0.13e-6, "s/file", "measured", "listing from the index"),
    "scan": Constant(2.1e-6, "s/file", "measured", "listing without it, if the system has the directories in memory"),
    "status": Constant(5.7e-6, "s/file", "measured", "identity: size and time of each file, and a digest of all"),
    "verify": Constant(114e-6, "s/file", "measured", "the first look at a test image: its header and its end"),
    "listing": Constant(23, "B/file", "measured", "a name and where it begins, in every process"),
    "parameters": Constant(11_176_512, "", "counted", "parameters of ResNet-18 without its classifier"),
    "channels": Constant(512, "", "counted", "numbers in a feature vector"),
    "forward": Constant(3.63e9, "FLOP/image", "counted", "ResNet-18 on 224×224, forward"),
    "activations": Constant(22.2e6, "B/image", "counted", "kept for the backward pass, in single precision"),
    "gpu": Constant(30e12, "FLOP/s", "assumed", "what a GPU sustains on ResNet-18 in bf16-mixed"),
    "launch": Constant(
        8e-3, "s/step", "assumed", "the least time of a step: starting its kernels, however small the batch"
    ),
    "augment": Constant(30e-6, "s/image", "assumed", "AutoAugment on a GPU"),
    "cores": Constant(8, "per GPU", "assumed", "cores that decode"),
    "machine": Constant(8, "GPUs", "assumed", "in one machine"),
    "inner": Constant(100e9, "B/s", "assumed", "between the GPUs of a machine"),
    "outer": Constant(12.5e9, "B/s", "assumed", "between machines"),
    "latency": Constant(30e-6, "s", "assumed", "of an all-reduce, for every doubling of the GPUs"),
}


def measured() -> dict[str, float]:
    """The numbers that can be measured or counted in seconds, on this machine and now."""
    torch.set_num_threads(1)
    return {**_images(), **_herding(), **_files(), **_net()}


def _images(count: int = 96) -> dict[str, float]:
    with TemporaryDirectory() as directory:
        paths = write_photographs(Path(directory), count, 24, 375, 500, quality=90)
        files = FileList.of_paths(paths)
        source, rows = FileSource(files, SIZE), np.arange(count, dtype=np.int64)
        decode = _processor(lambda: source.read(rows, Draw(0, rows)))
        return {"decode": decode / count, "verify": _processor(lambda: damaged(files)) / count}


def _files(directories: int = 20, each: int = 1300) -> dict[str, float]:
    with TemporaryDirectory() as place:
        root = Path(place)
        make_tree(root, directories, each)
        names = directory_names(root)
        files = FileList.scan(root, names)
        rows = np.arange(len(files), dtype=np.int64)
        return {
            "scan": _processor(lambda: FileList.scan(root, names)) / len(files),
            "status": _processor(lambda: statuses(files, rows)) / len(files),
            "listing": (len(files.names) + files.offsets.nbytes) / len(files),
        }


def _herding(few: int = 20, many: int = 200) -> dict[str, float]:
    features = torch.rand(CLASS_IMAGES, 512, generator=torch.Generator().manual_seed(0))
    short, long = (_processor(lambda m=m: herd(features, m)) for m in (few, many))  # type: ignore[misc]
    each = (long - short) / (many - few)
    return {"herd_class": short - few * each, "herd_choice": each}


def _net() -> dict[str, float]:
    net = build_backbone("resnet18", 3)
    image = torch.rand(1, 3, SIZE, SIZE)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(image)
    return {
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "channels": net.channels,
        "forward": counter.get_total_flops(),
        "activations": saved_bytes(net, image),
    }


def _processor(work: Callable[[], object], rounds: int = 3) -> float:
    """The least processor time of a work: others on the machine make it longer by less than by the clock."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)
