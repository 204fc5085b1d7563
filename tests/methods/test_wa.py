"""WA: after a task old and new rows have the same mean length, and nothing but the new rows was touched for it."""

from __future__ import annotations

import pytest
import torch

import drcil
from drcil.heads.head import new_linear
from drcil.learner import Learner
from drcil.methods.rebalancing import align_weights
from drcil.streams.stream import Stream
from support.engine import assert_equal, state
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical

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
