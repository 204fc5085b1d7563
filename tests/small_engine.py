"""Small things to train with: a hundred digits, a net of three blocks, an engine without a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcil.data.augment import build_augment
from drcil.data.datasets import digits
from drcil.heads import LinearHead
from drcil.keys import randomness
from drcil.nets.build import build_backbone
from drcil.nets.net import Net
from drcil.nets.output import Output
from drcil.schedules import Schedule
from drcil.stages import Batch, Losses, Stage, Term
from drcil.train import EngineSettings, Journal, Listener, TrainingEngine
from drcil.train.events import Event, StepDone, silence

FEW = digits.load_digits().train.subset(np.arange(0, 1200, 12))
SCHEDULE = Schedule(epochs=2, lr=0.1, batch_size=32, weight_decay=1e-3)


def make_engine(
    augment: str = "none",
    journal: Journal | None = None,
    listener: Listener = silence,
    kind: type[TrainingEngine] = TrainingEngine,
    **options: Any,
) -> TrainingEngine:
    settings = EngineSettings(**{"device": "cpu", **options})
    inference = settings.inference(digits.SPEC.mean, digits.SPEC.std)
    augmentation = build_augment(augment, digits.SPEC, in_memory=True)
    return kind(settings, inference, augmentation, 3, journal, listener)


def make_net(classes: int = 10) -> Net:
    with randomness("test"):
        backbone = build_backbone("resnet-digits", 1)
        net = Net(backbone, LinearHead(backbone.channels))
        net.head.grow(classes)
    return net


def cross_entropy(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    return {"classification": Term(F.cross_entropy(output.logits.fused, batch.labels))}


def make_stage(net: nn.Module, **options: Any) -> Stage:
    return Stage(
        **{"name": "test", "net": net, "data": FEW, "objective": cross_entropy, "schedule": SCHEDULE, **options}
    )


def fit(engine: TrainingEngine, stage: Stage) -> None:
    with engine.task(1):
        engine.fit(stage)


def state(module: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(dict(module.state_dict()))


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def in_order(labels: Any, key: int) -> Any:
    return np.arange(len(labels), dtype=np.int64)


class Stop(Exception):
    """Raised out of the middle of a stage."""


def stopped_and_resumed(
    make: Callable[[Journal, Callable[[Event], None]], None], directory: Path, stops: Sequence[int]
) -> None:
    """Train with a snapshot after every step, stopping at these steps one after the other; then to the end."""
    for stop in stops:
        left = stop

        def listener(event: Event) -> None:
            nonlocal left
            left -= isinstance(event, StepDone)
            if left == 0:
                raise Stop

        with pytest.raises(Stop):
            make(Journal(directory, 0), listener)
    make(Journal(directory, 0), lambda event: None)
