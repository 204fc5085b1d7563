"""A plugin: a method, a backbone and a listener that are not part of drcil.

drcil run smooth-replay digits-b0-5 --backbone small-cnn --listener notes --plugin my_plugin.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from drcil.heads import LinearHead
from drcil.methods import Method, Settings
from drcil.methods.spec import method
from drcil.nets.features import BACKBONES, Backbone, Features
from drcil.nets.output import Output
from drcil.schedules import Schedule
from drcil.stages import Batch, Engine, Losses, Stage, Term
from drcil.streams.stream import Task
from drcil.train.events import EpochDone, Event
from drcil.train.listeners import LISTENERS


class SmoothReplaySettings(Settings):
    first: Schedule
    later: Schedule
    smoothing: float = Field(ge=0, lt=1)
    """The share of a label that is spread over all classes."""


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


@LISTENERS.register("notes")
class Notes:
    """A line for every epoch, in notes.txt."""

    def __init__(self, directory: Path) -> None:
        self.file = (directory / "notes.txt").open("a", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochDone):
            self.file.write(f"task {event.task} {event.stage}, epoch {event.epoch + 1}: {event.losses['total']:.4f}\n")

    def close(self) -> None:
        self.file.close()
