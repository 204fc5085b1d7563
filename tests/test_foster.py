"""FOSTER: weights for rare classes against slow formulas, both stages, and the two models of one training."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import drcil
from drcil.errors import UserError
from drcil.keys import generator
from drcil.learner import Learner
from drcil.methods import METHODS
from drcil.methods.foster import FosterSettings
from drcil.methods.remedies import classifier_of
from drcil.methods.resolve import resolve_settings
from drcil.objectives import balanced_distillation, class_weights, distillation
from drcil.stages import Batch, Stage
from drcil.streams.stream import Stream
from drcil.train import TrainingEngine

LABELS = torch.arange(4)
betas = st.floats(0, 0.999)
counts_of_classes = st.lists(st.integers(1, 1300), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learnt(name: str, digits: Stream, tasks: int, **options: Any) -> Learner:
    learner = Learner(name, epochs_scale=0.03, device="cpu", **{"memory": "40", **options})
    for task in itertools.islice(digits, tasks):
        learner.learn(task)
    return learner


def stages_of_task_2(learner: Learner, digits: Stream, patch: pytest.MonkeyPatch) -> list[tuple[Stage, dict[str, Any]]]:
    """Each stage with the weights that its net began with."""
    stages, fit = [], learner.engine.fit

    def kept(stage: Stage) -> None:
        stages.append((stage, {name: tensor.clone() for name, tensor in stage.net.state_dict().items()}))
        fit(stage)

    patch.setattr(learner.engine, "fit", kept)
    learner.learn(digits[1])
    return stages


@given(counts_of_classes, betas)
def test_class_weights_are_the_slow_formula_with_mean_1(counts: list[int], beta: float) -> None:
    # The effective number as a sum: 1 + β + … + β^(m - 1).
    slow = [1 / sum(beta**power for power in range(count)) for count in counts]
    expected = torch.tensor([value * len(slow) / sum(slow) for value in slow])
    weights = class_weights(torch.tensor(counts), beta)
    assert torch.allclose(weights, expected, rtol=1e-4)
    assert weights.mean().item() == pytest.approx(1, abs=1e-5)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.9, 0.99))
def test_the_rarer_class_weighs_more(few: int, more: int, beta: float) -> None:
    rare, common = class_weights(torch.tensor([few, few + more]), beta).tolist()
    assert rare > 1 > common


def test_a_class_without_images_weighs_as_one_with_a_single_image_and_takes_nothing_from_the_others() -> None:
    weights = class_weights(torch.tensor([0, 1, 500]), 0.96)
    assert weights[0] == weights[1]
    assert torch.isfinite(weights).all()
    assert torch.equal(weights[1:], class_weights(torch.tensor([1, 500]), 0.96))


@given(st.integers(0, 999), st.floats(0.5, 4), st.lists(st.floats(0.05, 5), min_size=2, max_size=6))
def test_balanced_distillation_is_the_slow_formula(seed: int, temperature: float, weights: list[float]) -> None:
    size = (3, len(weights))
    student, teacher = (
        3 * torch.randn(size, generator=generator(seed, who)).double() for who in ("student", "teacher")
    )
    total = 0.0
    for answer, taught in zip(student.tolist(), teacher.tolist(), strict=True):
        target = [math.exp(value / temperature) * weight for value, weight in zip(taught, weights, strict=True)]
        powers = [math.exp(value / temperature) for value in answer]
        for wanted, power in zip(target, powers, strict=True):
            total -= wanted / sum(target) * math.log(power / sum(powers)) / 3
    found = balanced_distillation(student, teacher, torch.tensor(weights).double(), temperature)
    assert found.item() == pytest.approx(total, rel=1e-6)


def test_equal_weights_balance_nothing() -> None:
    student, teacher = torch.randn(2, 4, 5, generator=generator("logits"))
    assert torch.allclose(
        balanced_distillation(student, teacher, torch.full((5,), 3.0)), distillation(student, teacher)
    )


def test_boosting_divides_logits_by_weights_of_the_images_there_are(
    digits: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learnt("foster", digits, 1, settings={"boosting_betas": [0.9, 0.5], "distillation": 3.0})
    before = copy.deepcopy(learner.method.net).eval()
    (boosting, start), _ = stages_of_task_2(learner, digits, monkeypatch)
    # 20 of each old class in memory.
    weights = class_weights(torch.tensor([20, 20, *digits[1].new.counts(4)[2:]]), 0.9)
    assert weights[:2].min() > 1 > weights[2:].max()
    images = torch.rand(4, 1, 8, 8, generator=generator("images"))
    with torch.no_grad():
        output, previous = boosting.net(images), before(images)
        terms = boosting.objective(output, {}, Batch(LABELS, LABELS))
    fused = output.logits.fused
    assert torch.isclose(terms["classification"].value, F.cross_entropy(fused / weights, LABELS))
    assert torch.isclose(terms["auxiliary"].value, F.cross_entropy(output.logits.extras["auxiliary"], LABELS))
    assert torch.isclose(terms["distillation"].value, distillation(fused[:, :2], previous.logits.fused))
    assert terms["distillation"].weight == 3
    for member in (0, 1):
        stem = f"backbone.members.{member}.stem.conv.weight"
        assert torch.equal(start[stem], before.state_dict()["backbone.stem.conv.weight"])
    assert torch.equal(start["head.classifier.weight"][:2, :64], before.state_dict()["head.classifier.weight"])


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


def test_the_student_starts_as_the_old_model_and_keeps_its_size(
    digits: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learnt("foster", digits, 1)
    before = {name: tensor.clone() for name, tensor in learner.method.net.state_dict().items()}
    size = learner.method.parameters()
    _, (compression, start) = stages_of_task_2(learner, digits, monkeypatch)
    for name, tensor in before.items():
        assert torch.equal(start[name][: len(tensor)] if tensor.ndim else start[name], tensor)
    assert learner.method.net is compression.net
    assert learner.method.parameters() == size + 2 * 65
    # What it learns from is the boosted model: two backbones, whose features also choose the exemplars.
    assert compression.teachers["expanded"] is learner.method.herding_net()
    assert learner.engine.features(learner.method.herding_net(), digits[0].test).shape[1] == 128
    settings = learner.method.settings
    assert isinstance(settings, FosterSettings)
    weights = class_weights(compression.data.counts(4), settings.compression_beta)
    images = torch.rand(4, 1, 8, 8, generator=generator("images"))
    with torch.no_grad():
        student, teacher = compression.net(images), compression.teachers["expanded"](images)
        (term,) = compression.objective(student, {"expanded": teacher}, Batch(LABELS, LABELS)).values()
    assert torch.isclose(term.value, balanced_distillation(student.logits.fused, teacher.logits.fused, weights))
    assert compression.schedule.weight_decay == 0


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
