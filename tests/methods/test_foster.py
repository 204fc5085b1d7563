"""FOSTER: class weights, the start of both stages, the two models of one training."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drcil
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.rebalancing import classifier_of
from drcil.objectives import balanced_distillation, class_weights, distillation
from drcil.seeding import generator
from drcil.streams.stream import Stream
from drcil.train import TrainingEngine
from support.engine import state
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learnt(name: str, digits: Stream, tasks: int, **options: Any) -> Learner:
    learner = Learner(name, epochs_scale=0.03, device="cpu", **{"memory": "40", **options})
    for task in itertools.islice(digits, tasks):
        learner.learn(task)
    return learner


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.9, 0.99))
def test_the_rarer_class_weighs_more(few: int, more: int, beta: float) -> None:
    rare, common = class_weights(torch.tensor([few, few + more]), beta).tolist()
    assert rare > 1 > common


def test_a_class_without_images_weighs_as_one_with_a_single_image_and_takes_nothing_from_the_others() -> None:
    weights = class_weights(torch.tensor([0, 1, 500]), 0.96)
    assert weights[0] == weights[1]
    assert torch.isfinite(weights).all()
    assert torch.equal(weights[1:], class_weights(torch.tensor([1, 500]), 0.96))


def test_equal_weights_balance_nothing() -> None:
    student, teacher = torch.randn(2, 4, 5, generator=generator("logits"))
    assert torch.allclose(
        balanced_distillation(student, teacher, torch.full((5,), 3.0)), distillation(student, teacher)
    )


def test_both_backbones_start_as_the_old_one(digits: Stream) -> None:
    learner = learnt("foster", digits, 1)
    before = state(learner.method.net)
    boosting, _ = recorded(learner, digits[1])
    for member in (0, 1):
        for name, tensor in before.items():
            if name.startswith("backbone."):
                assert torch.equal(
                    boosting.before[f"backbone.members.{member}.{name.removeprefix('backbone.')}"], tensor
                )
    weight = boosting.before["head.classifier.weight"]
    assert torch.equal(weight[:2, :64], before["head.classifier.weight"])


def test_every_task_has_its_beta_and_the_last_goes_on(digits: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def noted(counts: torch.Tensor, beta: float) -> torch.Tensor:
        asked.append(beta)
        return class_weights(counts, beta)

    monkeypatch.setattr("drcil.methods.foster.class_weights", noted)
    monkeypatch.setattr(TrainingEngine, "fit", lambda engine, stage: None)
    learnt("foster", digits, 4, settings={"boosting_betas": [0.9, 0.5], "compression_beta": 0.1})
    assert asked == [0.9, 0.1, 0.5, 0.1, 0.5, 0.1]


@pytest.mark.parametrize("betas", [[], [0.9, 1.0], [-0.1]])
def test_a_beta_is_at_least_0_and_less_than_1(betas: list[float]) -> None:
    with pytest.raises(UserError, match="boosting_betas"):
        resolve_settings(METHODS["foster"], "digits", {"boosting_betas": betas})


def test_the_student_starts_as_the_old_model_and_keeps_its_size(digits: Stream) -> None:
    learner = learnt("foster", digits, 1)
    before, size = state(learner.method.net), learner.method.parameters()
    _, compression = recorded(learner, digits[1])
    for name, tensor in before.items():
        start = compression.before[name]
        assert torch.equal(start[: len(tensor)] if tensor.ndim else start, tensor)
    assert learner.method.net is compression.stage.net
    assert learner.method.parameters() == size + 2 * 65
    # The teacher is the boosted model: two backbones, whose features also choose the exemplars.
    assert compression.stage.teachers["expanded"] is learner.method.herding_net()
    assert learner.engine.features(learner.method.herding_net(), digits[0].test).shape[1] == 128
    assert compression.stage.schedule.weight_decay == 0


def test_both_models_are_read_and_the_boosted_one_has_two_backbones(digits: Stream) -> None:
    learner = learnt("foster", digits, 2)
    assert list(learner.readouts()) == ["compressed", "boosted"]
    compressed, boosted = (learner.method.parameters(name) for name in ("compressed", "boosted"))
    assert learner.method.parameters() == compressed
    assert boosted - 4 * 129 == 2 * (compressed - 4 * 65)


def test_the_boosted_model_answers_by_a_linear_classifier_on_both_backbones(digits: Stream) -> None:
    learner = learnt("foster", digits, 2)
    boosted = learner.method.readouts()["boosted"].net
    features = learner.engine.features(boosted, digits[1].test)
    classifier = classifier_of(boosted)  # type: ignore[arg-type]
    best = (features @ classifier.weight.T + classifier.bias).argmax(dim=1)
    assert torch.equal(learner.rank(digits[1].test)["boosted"].classes[:, 0], best)
