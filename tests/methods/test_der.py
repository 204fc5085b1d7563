"""DER: backbones that are never changed again, auxiliary targets, and a classifier made fair."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import drcil
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods.der import auxiliary_targets
from drcil.methods.rebalancing import classifier_of
from drcil.nets.expanded import members_of
from drcil.seeding import generator
from drcil.stages import Batch, Losses, Stage
from drcil.streams.stream import Stream

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learnt(digits: Stream, tasks: int, **settings: Any) -> Learner:
    learner = Learner("der", epochs_scale=0.03, memory="40", device="cpu", settings=settings)
    for task in itertools.islice(digits, tasks):
        learner.learn(task)
    return learner


def backbones_of(learner: Learner) -> list[dict[str, Tensor]]:
    return [{**member.state_dict()} for member in members_of(learner.method.net)]


@given(st.integers(1, 50), st.lists(st.integers(0, 99), min_size=1, max_size=20))
def test_auxiliary_targets_are_0_for_old_classes_and_count_new_ones_from_1(old: int, labels: list[int]) -> None:
    targets = auxiliary_targets(torch.tensor(labels), old)
    assert targets.tolist() == [0 if label < old else 1 + label - old for label in labels]


def test_earlier_backbones_stay_bit_for_bit_as_they_were(digits: Stream) -> None:
    learner = learnt(digits, 1)
    past: list[dict[str, Tensor]] = []
    for task in digits[1:4]:
        past.append({name: tensor.clone() for name, tensor in backbones_of(learner)[-1].items()})
        learner.learn(task)
        *earlier, newest = backbones_of(learner)
        assert len(earlier) == len(past)
        for was, now in zip(past, earlier, strict=True):
            assert all(torch.equal(was[name], now[name]) for name in was)
        # Statistics of the batches are learnt too, by the newest alone.
        changed = {name for name in newest if not torch.equal(newest[name], past[-1][name])}
        assert {"stem.conv.weight", "stem.norm.running_mean", "stem.norm.num_batches_tracked"} <= changed


def test_earlier_backbones_are_in_evaluation_mode_at_every_step(
    digits: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learnt(digits, 2)
    fit, modes = learner.engine.fit, []

    def watched(stage: Stage) -> None:
        def objective(*given: Any) -> Losses:
            modes.append([member.training for member in members_of(stage.net)])  # type: ignore[arg-type]
            return stage.objective(*given)

        fit(replace(stage, objective=objective))

    monkeypatch.setattr(learner.engine, "fit", watched)
    learner.learn(digits[2])
    assert modes
    assert all(mode == [False, False, True] for mode in modes)


def test_every_task_adds_a_backbone_and_ends_with_aligned_rows(digits: Stream) -> None:
    learner = learnt(digits, 1)
    one = sum(parameter.numel() for parameter in learner.method.net.backbone.parameters())
    for tasks in (2, 3):
        learner.learn(digits[tasks - 1])
        assert learner.method.parameters() == tasks * one + 2 * tasks * (64 * tasks + 1)
        features = learner.engine.features(learner.method.herding_net(), digits[0].test)
        assert features.shape[1] == 64 * tasks
        norms = classifier_of(learner.method.net).weight.norm(dim=1)
        assert torch.isclose(norms[:-2].mean(), norms[-2:].mean())


def test_retraining_makes_a_fresh_classifier_on_equally_many_images(
    digits: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learnt(digits, 1, balancing="retrain", temperature=5.0)
    fit, nets = learner.engine.fit, []
    stages: list[Stage] = []

    def kept(stage: Stage) -> None:
        nets.append({name: tensor.clone() for name, tensor in stage.net.state_dict().items()})
        fit(stage)
        nets.append({name: tensor.clone() for name, tensor in stage.net.state_dict().items()})
        stages.append(stage)

    monkeypatch.setattr(learner.engine, "fit", kept)
    learner.learn(digits[1])
    expanded, fresh, final = nets[1:]
    assert set(stages[1].data.counts(4)) == {20}
    classifier = {"head.classifier.weight", "head.classifier.bias"}
    assert {name for name in fresh if not torch.equal(expanded[name], fresh[name])} == classifier
    assert {name for name in fresh if not torch.equal(final[name], fresh[name])} == classifier
    with torch.no_grad():
        output = stages[1].net(torch.rand(4, 1, 8, 8, generator=generator("images")))
    labels = torch.arange(4)
    (term,) = stages[1].objective(output, {}, Batch(labels, labels)).values()
    assert torch.isclose(term.value, F.cross_entropy(output.logits.fused / 5, labels))


def test_retraining_needs_a_memory(digits: Stream) -> None:
    with pytest.raises(UserError, match="memory"):
        Learner("der", memory="none", device="cpu", settings={"balancing": "retrain"}).learn(digits[0])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "margin"), [("der", 25), ("foster", 25), ("foster-b4", 25)])
def test_a_backbone_more_beats_plain_training(method: str, margin: float, digits: Stream) -> None:
    averages = {}
    for name in (method, "finetune"):
        learner = Learner(name, epochs_scale=0.15, device="cpu")
        accuracies = []
        for task in digits[:4]:
            learner.learn(task)
            accuracies.append(learner.evaluate(task.test))
        averages[name] = float(np.mean(accuracies))
    assert averages[method] > averages["finetune"] + margin
