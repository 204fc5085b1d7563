"""Every method learns from the parts of a batch what it learns from the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import drcil
from drcil.methods import METHODS
from drcil.methods.two_stage import reason_not_applicable
from drcil.seeding import seeded_torch
from drcil.stages import Stage
from drcil.streams.memory import first_of_each_class
from drcil.train import TrainingEngine
from support.engine import in_double, state

pytestmark = pytest.mark.numerical


def registered() -> Iterator[str]:
    """All methods, and their two-stage forms."""
    for name, spec in METHODS.items():
        if spec.alias_of is None:
            yield name
            if reason_not_applicable(spec.build) is None:
                yield f"{name}+two-stage"


def trained_nets(method: str, accumulate: int) -> list[tuple[str, dict[str, Tensor]]]:
    """Every stage of two tasks of a few digits, and its net after training without batch statistics in float64."""
    nets: list[tuple[str, dict[str, Tensor]]] = []
    fit = TrainingEngine.fit

    def fit_without_batch_statistics(engine: TrainingEngine, stage: Stage) -> None:
        # Distances to a teacher have no gradient where there is none yet: rounding alone would decide.
        with torch.no_grad(), seeded_torch("apart from teachers"):
            for parameter in stage.net.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        fit(engine, replace(stage, frozen=[stage.net]))
        nets.append((stage.name, state(stage.net)))

    with in_double(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingEngine, "fit", fit_without_batch_statistics)
        stream = drcil.stream("digits-b0-5", memory=METHODS[method].build.memory or "6")
        learner = drcil.Learner(method, epochs_scale=0.01, device="cpu", accumulate=accumulate)
        for task in stream[:2]:
            # An odd number of images, so that parts have different sizes.
            learner.learn(replace(task, new=first_of_each_class(task.new, 11)))
    return nets


@pytest.mark.filterwarnings("ignore:the backbone is random")
@pytest.mark.parametrize("method", list(registered()))
def test_parts_of_a_batch_teach_what_the_whole_batch_does(method: str) -> None:
    whole, parts = trained_nets(method, 1), trained_nets(method, 2)
    assert [name for name, _ in parts] == [name for name, _ in whole]
    for (stage, expected), (_, found) in zip(whole, parts, strict=True):
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-7, atol=1e-9, msg=f"{name} after '{stage}'")
