"""What is measured: images of CIFAR-100's shape, and learners before a given task of a stream."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from drcil.data.augment import normalise
from drcil.data.dataset import CIFAR_SPEC, Dataset, DataSpec
from drcil.data.datasets.cifar100 import FOLDER, load_cifar100
from drcil.data.image_set import ArraySource, ImageSet
from drcil.data.source_refs import DatasetRef
from drcil.learner import Learner
from drcil.models.model import new_model
from drcil.seeding import numpy_generator
from drcil.settings import ModelSettings, data_directory
from drcil.stages import Stage
from drcil.streams.stream import Task, make_stream
from drcil.train import EngineSettings, Listener, TrainingEngine
from drcil.train.events import EpochDone, Event, StageStarted, StepDone, silence

_SHARED = 0.9
"""Share of the variance that the colour channels have in common; photographs are nearly grey."""
_DEVIATION = 55.0
_FALL = 1.2
"""Amplitudes fall as frequency to this power, as in photographs."""


def photographs(count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Random RGB images (N, H, W, 3) with the statistics of photographs.

    Low frequencies dominate and the channels are correlated, so that file sizes and histograms resemble those of
    photographs.
    """
    generator = numpy_generator("photographs", count, height, width)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    pictures = np.empty((count, height, width, 3), dtype=np.uint8)
    for picture in pictures:
        noise = generator.standard_normal((4, height, width))
        fields = np.fft.irfft2(np.fft.rfft2(noise) / frequency**_FALL, s=(height, width))
        fields /= fields.std(axis=(1, 2), keepdims=True)
        mixed = np.sqrt(_SHARED) * fields[:1] + np.sqrt(1 - _SHARED) * fields[1:]
        levels = generator.uniform(90, 160) + _DEVIATION * mixed
        picture[:] = levels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pictures


STREAM = "cifar100-b0-10"
CLASSES = 100
_DISTINCT = 2000
"""Number of generated images; a larger dataset repeats them."""


class Workload:
    """Images to measure with: CIFAR-100 if the data directory has it, otherwise generated."""

    def __init__(self, data: Path | None = None) -> None:
        self.directory = data_directory(data)
        self.is_real = any((self.directory / name).exists() for name in (FOLDER, f"{FOLDER}.tar.gz"))

    @property
    def description(self) -> str:
        return f"CIFAR-100 in {self.directory}" if self.is_real else "generated images of CIFAR-100's shape"

    @cached_property
    def dataset(self) -> Dataset:
        return load_cifar100(self.directory) if self.is_real else generated_cifar100()

    def few(self, train: int, test: int = 1) -> Dataset:
        """The same classes with this many training and test images each."""
        return replace(self.dataset, train=_first(self.dataset.train, train), test=_first(self.dataset.test, test))


def generated_cifar100() -> Dataset:
    """A dataset of the shape of CIFAR-100 without files."""
    pixels = torch.from_numpy(photographs(_DISTINCT, 32, 32)).permute(0, 3, 1, 2).contiguous()

    def split(name: Literal["train", "test"], count: int) -> ImageSet:
        source = ArraySource(
            pixels.repeat(count // _DISTINCT, 1, 1, 1), DatasetRef(name="generated", split=name, size=32)
        )
        rows = np.arange(count, dtype=np.int64)
        return ImageSet.of(source, rows, rows % CLASSES)

    classes = tuple(f"class {number}" for number in range(CLASSES))
    return Dataset("generated", classes, split("train", 50_000), split("test", 10_000), CIFAR_SPEC)


def _first(images: ImageSet, count: int) -> ImageSet:
    """The first ``count`` images of every class, sorted by class."""
    order = np.argsort(images.labels, kind="stable")
    return images.subset(np.concatenate([order[images.labels[order] == label][:count] for label in range(CLASSES)]))


def normalised_views(pixels: Tensor, spec: DataSpec) -> Tensor:
    """The input of a net for uint8 images, in the memory layout of the engine."""
    return normalise(pixels.contiguous(memory_format=torch.channels_last), spec.mean, spec.std)


class Untrained(TrainingEngine):
    """An engine that records stages instead of training them."""

    def __init__(self, engine: TrainingEngine) -> None:
        super().__init__(engine.settings, engine.inference, engine.augmentation, engine.seed)
        self.stages: dict[str, Stage] = {}

    def fit(self, stage: Stage) -> None:
        self.stages[stage.name] = stage


def learner_before(
    dataset: Dataset, method: str, number: int, memory: str, listener: Listener = silence
) -> tuple[Learner, Task]:
    """A learner that went through the tasks before this one without training, and the task.

    Its nets have the right shapes and its memory the right size; every stage has one epoch.
    """
    stream = make_stream(STREAM, dataset, memory=memory)
    shape = dataset.train.shape
    model = new_model(ModelSettings(method=method, epochs_scale=1e-6), dataset.spec, shape, stream.budget)
    learner = Learner.from_model(model, EngineSettings(device="cpu"), listener)
    for task in stream[: number - 1]:
        stages_of(learner, task)
        model.memory.update(task.new, task.total, lambda images: torch.ones(len(images), 1))
        model.sizes, model.classes = task.sizes, (*model.classes, *task.classes)
    return learner, stream.task(number)


def stages_of(learner: Learner, task: Task) -> dict[str, Stage]:
    """The stages that the learner's method would train for its next task, by name."""
    memory = learner.memory.images
    engine = Untrained(learner.engine)
    with learner.engine.task(task.number):
        learner.method.learn(task if memory is None else replace(task, memory=memory), engine)
    return engine.stages


class EpochClock:
    """Listener that records when an epoch started, when each step ended, and the seconds of the epoch."""

    def __init__(self) -> None:
        self.start = 0.0
        self.ends: list[float] = []
        self.seconds = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.start, self.ends = time.perf_counter(), []
        elif isinstance(event, StepDone):
            self.ends.append(time.perf_counter())
        elif isinstance(event, EpochDone):
            self.seconds = event.seconds


def activations(stage: Stage, batch: int) -> int:
    """Bytes that the forward pass of the student saves for the backward pass."""
    images = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    return saved_bytes(stage.net, images)


def saved_bytes(net: nn.Module, images: Tensor) -> int:
    """Bytes that a forward pass saves for the backward pass; each storage counts once, parameters do not."""
    parameters = {tensor.untyped_storage().data_ptr() for tensor in net.state_dict().values()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        # Named, so that saved tensors stay alive and no address is used twice.
        output = net(images)
    del output
    return sum(saved.values())
