"""Small things to train with: a hundred digits, a net of three blocks, an engine without a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drcil.data.augment import build_augment
from drcil.data.augment.pipelines import normalisation
from drcil.data.dataset import DIGITS_SPEC
from drcil.data.datasets import digits
from drcil.heads import LinearHead
from drcil.inference import Inference
from drcil.nets.backbone import build_backbone
from drcil.nets.net import Net, Output
from drcil.seeding import seeded_torch
from drcil.stages import Batch, Losses, Schedule, Stage, Term
from drcil.train import EngineSettings, Listener, SnapshotStore, TrainingEngine, make_inference
from drcil.train.events import Event, StepDone, silence

FEW = digits.load_digits().train.subset(np.arange(0, 1200, 12))
SCHEDULE = Schedule(epochs=2, lr=0.1, batch_size=32, weight_decay=1e-3)


def make_engine(
    augment: str = "none",
    journal: SnapshotStore | None = None,
    listener: Listener = silence,
    kind: type[TrainingEngine] = TrainingEngine,
    **options: Any,
) -> TrainingEngine:
    settings = EngineSettings(**{"device": "cpu", **options})
    inference = make_inference(settings, DIGITS_SPEC.mean, DIGITS_SPEC.std)
    augmentation = build_augment(augment, DIGITS_SPEC, in_memory=True)
    return kind(settings, inference, augmentation, 3, journal, listener)


@contextmanager
def in_double() -> Iterator[None]:
    """Within the block nets are created and compute in float64.

    In float32 the order of summation decides whether an activation is just above or below zero, and training carries
    the difference on; the order depends on the batch, the number of processes and the vector width of the CPU.
    """
    single = Inference.normalised
    # Its constants have the default dtype of the first call.
    normalisation.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(Inference, "normalised", lambda self, pixels: single(self, pixels).double()):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        normalisation.cache_clear()


def make_net(classes: int = 10) -> Net:
    with seeded_torch("test"):
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


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """The same to what another order of summation changes in float64, after a stage of training."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-7, atol=1e-9, msg=partial("{}: {}".format, name))


def in_order(labels: Any, key: int) -> Any:
    return np.arange(len(labels), dtype=np.int64)


class Stop(Exception):
    """Raised out of the middle of a stage."""


def stopped_and_resumed(
    make: Callable[[SnapshotStore, Callable[[Event], None]], None], directory: Path, stops: Sequence[int]
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
            make(SnapshotStore(directory, 0), listener)
    make(SnapshotStore(directory, 0), lambda event: None)
