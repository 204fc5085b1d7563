"""What is measured on: images of CIFAR-100's shape, and learners that stand before a given task of a stream."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drcil.data.augment import normalise
from drcil.data.datasets.cifar100 import FOLDER, SPEC, load_cifar100
from drcil.data.datasets.dataset import Dataset, DataSpec
from drcil.data.datasets.place import data_directory
from drcil.data.sources.imageset import ArraySource, ImageSet, ImageShape
from drcil.learner import Learner
from drcil.models.model import ModelOptions, new_model
from drcil.stages import Stage
from drcil.streams.stream import Task, make_stream
from drcil.train import EngineSettings, Listener, TrainingEngine
from drcil.train.events import silence

from .pictures import photographs

STREAM = "cifar100-b0-10"
CLASSES = 100
_DISTINCT = 2000
"""Generated pictures that differ; a dataset of more repeats them."""


class Scene:
    """Where the images of a measurement come from: CIFAR-100 if the data directory has it, else made up."""

    def __init__(self, data: Path | None = None) -> None:
        self.directory = data_directory(data)
        self.real = any((self.directory / name).exists() for name in (FOLDER, f"{FOLDER}.tar.gz"))

    @property
    def images(self) -> str:
        """In words."""
        return f"CIFAR-100 in {self.directory}" if self.real else "generated images of CIFAR-100's shape"

    @cached_property
    def dataset(self) -> Dataset:
        return load_cifar100(self.directory) if self.real else generated_cifar100()

    def few(self, train: int, test: int = 1) -> Dataset:
        """The same classes with so many training and test images each."""
        return replace(self.dataset, train=_first(self.dataset.train, train), test=_first(self.dataset.test, test))


def generated_cifar100() -> Dataset:
    """A dataset of the shape of CIFAR-100 that needs no file."""
    pixels = torch.from_numpy(photographs(_DISTINCT, 32, 32)).permute(0, 3, 1, 2).contiguous()

    def split(name: str, count: int) -> ImageSet:
        source = ArraySource(pixels.repeat(count // _DISTINCT, 1, 1, 1), {"kind": "generated", "split": name})
        rows = np.arange(count, dtype=np.int64)
        return ImageSet(source, rows, rows % CLASSES)

    classes = tuple(f"class {number}" for number in range(CLASSES))
    return Dataset("generated", classes, split("train", 50_000), split("test", 10_000), SPEC)


def _first(images: ImageSet, count: int) -> ImageSet:
    """The first ``count`` images of every class, sorted by class."""
    order = np.argsort(images.labels, kind="stable")
    return images.subset(np.concatenate([order[images.labels[order] == label][:count] for label in range(CLASSES)]))


def as_seen(pixels: Tensor, spec: DataSpec) -> Tensor:
    """What a net is shown of uint8 images, in the layout the engine uses."""
    return normalise(pixels.contiguous(memory_format=torch.channels_last), spec.mean, spec.std)


class Untrained(TrainingEngine):
    """An engine that notes the stages it is given and trains none: the quick way to what comes after them."""

    def __init__(self, engine: TrainingEngine) -> None:
        super().__init__(engine.settings, engine.inference, engine.augmentation, engine.seed)
        self.stages: dict[str, Stage] = {}

    def fit(self, stage: Stage) -> None:
        self.stages[stage.name] = stage


def learner_before(
    dataset: Dataset, method: str, number: int, memory: str, listener: Listener = silence
) -> tuple[Learner, Task]:
    """A learner that has gone through the tasks before this one without training, and the task.

    Its nets have the shapes, and its memory the size, that they would have; every stage lasts one epoch.
    """
    stream = make_stream(STREAM, dataset, memory=memory)
    shape = ImageShape.of(dataset.train.source)
    model = new_model(ModelOptions(method, epochs_scale=1e-6), dataset.spec, shape, stream.budget)
    learner = Learner.of(model, EngineSettings(device="cpu"), listener)
    for task in stream[: number - 1]:
        stages_of(learner, task)
        model.memory.update(task.new, task.total, lambda images: torch.ones(len(images), 1))
        model.sizes, model.classes = task.sizes, (*model.classes, *task.classes)
    return learner, stream.task(number)


def stages_of(learner: Learner, task: Task) -> dict[str, Stage]:
    """The stages that the learner's method would train for its next task, by name. None is trained."""
    kept = learner.memory.images
    engine = Untrained(learner.engine)
    with learner.engine.task(task.number):
        learner.method.learn(task if kept is None else replace(task, memory=kept), engine)
    return engine.stages
