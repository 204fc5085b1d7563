"""WA: after a task old and new rows have the same mean length, and nothing but the new rows was touched for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import drcil
from drcil.heads.base import new_linear
from drcil.keys import generator
from drcil.learner import Learner
from drcil.methods.remedies import align_weights
from drcil.streams.stream import Stream
from recording import losses, recorded
from small_engine import assert_equal, state

WEIGHT, BIAS = "head.classifier.weight", "head.classifier.bias"


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learner_of(**settings: object) -> Learner:
    return Learner("wa", epochs_scale=0.03, device="cpu", settings=settings)


def test_alignment_is_all_that_follows_training_and_the_aligned_model_teaches_on(digits: Stream) -> None:
    learner = learner_of()
    (first,) = recorded(learner, digits[0])
    assert_equal(state(learner.method.net), first.after)
    for task in digits[1:3]:
        aligned_before = state(learner.method.net)
        (later,) = recorded(learner, task)
        assert_equal(later.stage.teachers["previous"].state_dict(), aligned_before)
        aligned = state(learner.method.net)
        assert {name for name in aligned if not torch.equal(aligned[name], later.after[name])} == {WEIGHT}
        weight, trained = aligned[WEIGHT], later.after[WEIGHT]
        assert torch.equal(weight[: task.old], trained[: task.old])
        assert (trained < 0).any(), "nobody asked for weights above zero"
        lengths = weight.norm(dim=1)
        assert lengths[: task.old].mean().item() == pytest.approx(lengths[task.old :].mean().item(), rel=1e-5)
        # One factor for all new rows, which does something.
        factors = weight[task.old :] / trained[task.old :]
        assert factors.std().item() < 1e-5
        assert abs(factors.mean().item() - 1) > 1e-3


@pytest.mark.parametrize(("weighting", "weights"), [("lambda", (0.5, 0.5)), ("sum", (1.0, 2.0))])
def test_the_loss_weighs_by_shares_of_the_classes_or_sums(
    weighting: str, weights: tuple[float, float], digits: Stream
) -> None:
    learner = learner_of(weighting=weighting)
    learner.learn(digits[0])
    (later,) = recorded(learner, digits[1])
    images, labels = torch.randn(8, 1, 8, 8, generator=generator("images")), torch.arange(8) % 4
    terms = losses(later.stage, images, labels)
    assert (terms["classification"].weight, terms["distillation"].weight) == weights
    student = later.stage.net(images).logits.fused
    taught = later.stage.teachers["previous"](images).logits.fused
    kept = -((taught / 2).softmax(1) * (student[:, :2] / 2).log_softmax(1)).sum(1).mean()
    assert terms["classification"].value.item() == pytest.approx(F.cross_entropy(student, labels).item(), rel=1e-5)
    assert terms["distillation"].value.item() == pytest.approx(kept.item(), rel=1e-5)


def test_weights_are_kept_from_falling_below_zero_on_request(digits: Stream) -> None:
    learner = learner_of(nonnegative=True)
    for task in digits[:2]:
        (seen,) = recorded(learner, task)
        assert (seen.after[WEIGHT] >= 0).all()
        assert seen.after[WEIGHT].max() > 0
    assert (state(learner.method.net)[BIAS] < 0).any()


def test_rows_without_length_stay_without_length() -> None:
    classifier = new_linear(4, 3)
    with torch.no_grad():
        classifier.weight[2:] = 0
    align_weights(classifier, 2)
    assert torch.equal(classifier.weight[2], torch.zeros(4))
    assert torch.isfinite(classifier.weight).all()
