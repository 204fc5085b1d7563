"""A plugin: a method with a part, a backbone, a dataset, an augmentation, a metric and a logger outside drcil.

drcil run smooth-replay bars-b0-3 --log notes --plugin my_plugin.py
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from drcil.data import ArraySource, Dataset, DatasetRef, DataSpec, ImageSet, register_dataset
from drcil.data.augment import AUGMENTS, Augment, Draws
from drcil.heads import LinearHead
from drcil.methods import Method, Settings, method
from drcil.metrics import METRICS, History
from drcil.nets.backbone import BACKBONES, Backbone, Features
from drcil.nets.net import Output
from drcil.nets.parts import PARTS, Part
from drcil.stages import Batch, Engine, Losses, Schedule, Stage, Term
from drcil.streams.stream import Task
from drcil.train.events import EpochDone, Record
from drcil.train.loggers import LOGGERS


class SmoothReplaySettings(Settings):
    first: Schedule
    later: Schedule
    smoothing: float = Field(ge=0, lt=1)
    """The share of a label that is spread over all classes."""


@PARTS.register("image-counts")
class ImageCounts(Part):
    """How many images each class was learnt from."""

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.counts = nn.Buffer(torch.zeros(classes, dtype=torch.int64))

    def add(self, labels: Tensor, classes: int) -> None:
        counts = torch.bincount(labels, minlength=classes)
        counts[: len(self.counts)] += self.counts
        self.counts = nn.Buffer(counts)

    def describe(self) -> dict[str, Any]:
        return {"classes": len(self.counts)}

    def forget(self, classes: Collection[int]) -> None:
        self.counts = nn.Buffer(self.counts[[label for label in range(len(self.counts)) if label not in classes]])


@method(
    "smooth-replay",
    paper="Szegedy et al., Rethinking the Inception Architecture for Computer Vision",
    year=2016,
    recipe=Path(__file__).with_suffix(".toml"),
)
class SmoothReplay(Method):
    """Replay with smoothed labels."""

    Settings = SmoothReplaySettings
    settings: SmoothReplaySettings

    def learn(self, task: Task, engine: Engine) -> None:
        counts = self.parts.setdefault("counts", ImageCounts())
        assert isinstance(counts, ImageCounts)
        counts.add(torch.from_numpy(task.new.labels), task.total)
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        self.net.head.grow(len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            smoothed = cross_entropy(output.logits.fused, batch.labels, label_smoothing=self.settings.smoothing)
            return {"smoothed": Term(smoothed)}

        engine.fit(Stage("later", self.net, task.new.join(task.memory), objective, self.settings.later))


@BACKBONES.register("small-cnn")
class SmallCnn(Backbone):
    """Two convolutions: 32 channels, for images of 8 pixels and more."""

    channels = 32

    def __init__(self, channels_in: int) -> None:
        super().__init__()
        self.channels_in = channels_in
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, self.channels, 3, stride=2, padding=1),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Features:
        last = self.layers(images)
        return Features((), last, last.mean(dim=(2, 3)))

    def describe(self) -> dict[str, Any]:
        return {"name": "small-cnn", "channels_in": self.channels_in}


BARS = DataSpec(kind="bars", backbone="small-cnn", memory="18", mean=(0.2,), std=(0.3,), augment="roll")
"""A kind of data that no recipe of drcil knows: they fall back on their default."""


@register_dataset("bars", spec=BARS, classes=6, protocols=("b0-3",))
def load_bars(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Bars of three directions and two widths, 8x8 pixels, made up. 40 noisy images of each to learn, 20 to test."""
    return Dataset(
        "bars", ("row", "rows", "column", "columns", "slash", "slashes"), _bars("train"), _bars("test"), BARS
    )


def _bars(split: Literal["train", "test"]) -> ImageSet:
    draws = np.random.default_rng(0 if split == "train" else 1)
    pixels, labels = [], np.repeat(np.arange(6), 40 if split == "train" else 20)
    for label in labels:
        image, place = np.zeros((8, 8)), draws.integers(1, 6)
        image[place : place + 1 + label % 2] = 200
        if label // 2 == 1:
            image = image.T
        elif label // 2 == 2:
            image = np.stack([np.roll(row, number) for number, row in enumerate(image.T)])
        pixels.append((image + draws.uniform(0, 55, (8, 8))).astype(np.uint8)[None])
    source = ArraySource(torch.from_numpy(np.stack(pixels)), DatasetRef(name="bars", split=split, size=8))
    return ImageSet.of(source, np.arange(len(labels)), labels.astype(np.int64))


@AUGMENTS.register("roll")
def roll(spec: DataSpec, in_memory: bool) -> Augment:
    """Every image moved around by up to one pixel in each direction."""

    def rolled(images: Tensor, draws: Draws) -> Tensor:
        steps = draws.taken(torch.randint(-1, 2, (draws.count, 2), generator=draws.generator)).tolist()
        return torch.stack([image.roll(step, dims=(1, 2)) for image, step in zip(images, steps, strict=True)])

    return Augment((rolled,), crops_files=False)


@METRICS.register("worst_task")
def worst_task(history: History) -> float:
    """Accuracy on the task that is known least in the end."""
    return min(history.matrix[-1])


@LOGGERS.register("notes")
class Notes:
    """A line for every epoch, in notes.txt."""

    def __init__(self, directory: Path) -> None:
        self.file = (directory / "notes.txt").open("w", encoding="utf-8")

    def __call__(self, records: Sequence[Record]) -> None:
        for done in records:
            if isinstance(done, EpochDone):
                self.file.write(f"task {done.task} {done.stage}, epoch {done.epoch + 1}: {done.losses['total']:.4f}\n")

    def close(self) -> None:
        self.file.close()
