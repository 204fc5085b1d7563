"""MEC: two backbones and their compression, and where the old branch of a residual head comes from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import drcil
from drcil.heads import DynamicResidualHead, NormHead, ResidualHead
from drcil.learner import Learner
from drcil.methods.expansion import expand
from drcil.methods.mec import Mec
from drcil.streams.stream import Stream
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def digits() -> Stream:
    return drcil.stream("digits-b0-5")


def learnt(name: str, digits: Stream, tasks: int, **settings: Any) -> Learner:
    learner = Learner(name, epochs_scale=0.03, device="cpu", settings=settings)
    for task in digits[:tasks]:
        learner.learn(task)
    return learner


def expanded_head(learner: Learner) -> torch.nn.Module:
    return learner.method.herding_net().get_submodule("head")


def test_mec_compresses_to_the_size_of_one_net_and_freezes_the_old_backbone(digits: Stream) -> None:
    learner = learnt("mecdrc", digits, 1)
    one = copy.deepcopy(learner.method.net)
    learner.learn(digits[1])
    nets = {name: readout.net for name, readout in learner.readouts().items()}
    assert list(nets) == ["compressed", "expanded"]

    def size(net: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in net.get_submodule("backbone").parameters())

    assert size(nets["compressed"]) == size(one)
    assert size(nets["expanded"]) == 2 * size(one)
    frozen = nets["expanded"].get_submodule("backbone.members.0").state_dict()
    assert all(map(torch.equal, frozen.values(), one.backbone.state_dict().values()))


def test_mec_balances_the_expanded_model_before_it_is_compressed(digits: Stream) -> None:
    stages = recorded(learnt("mec", digits, 1, remedies=["bft"]), digits[1])
    assert [seen.stage.name for seen in stages] == ["expansion", "finetuning", "compression"]


def test_merged_the_old_branch_is_that_of_expanded_models(digits: Stream) -> None:
    learner = learnt("mecdrc", digits, 2, old_branch="merged")
    first = expanded_head(learner)
    assert isinstance(first, DynamicResidualHead)
    fresh = first.branches.fresh()
    trained = {key: tensor.detach().clone() for key, tensor in first.branches.new().items()}
    for key, stack in first.branches.stacks().items():
        assert torch.equal(stack[0], fresh[key]), "the first have learnt nothing yet"
        assert not torch.equal(trained[key], fresh[key])
    learner.learn(digits[2])
    second = expanded_head(learner)
    assert isinstance(second, DynamicResidualHead)
    for key, stack in second.branches.stacks().items():
        assert torch.equal(stack[0], (fresh[key] + trained[key]) / 2)


@pytest.mark.parametrize("task", [2, 3])
@pytest.mark.parametrize(("head", "branch"), [("drc", "bn"), ("rc", "bn"), ("drc", "conv")])
def test_or_it_answers_as_the_previous_model_does(digits: Stream, task: int, head: str, branch: str) -> None:
    """ℓ'_t on old rows = ℓ̄_{t-1}, on all images of the task together: their statistics are what the branch undoes."""
    learner = learnt("mec", digits, task - 1, head=head, branch=branch, old_branch="previous")
    method, old = learner.method, 2 * (task - 1)
    assert isinstance(method, Mec)
    previous = copy.deepcopy(method.net)
    given = digits[task - 1]
    expanded = expand(method.net, method._expanded_head(given, learner.engine), given.total)
    assert isinstance(expanded.head, ResidualHead)
    assert all(len(stack) == 1 for stack in expanded.head.branches.stacks().values())
    images = learner.engine.inference.normalised(given.new.read())
    with torch.no_grad():
        expected = previous.eval()(images).logits.fused
        expanded.backbone.eval()
        logits = expanded.head.train()(expanded.backbone(images).last)
    assert logits.old.shape[1] == given.total
    torch.testing.assert_close(logits.old[:, :old], expected, rtol=1e-3, atol=1e-3)
    fresh = expanded.head.branches.fresh()
    if branch == "bn":
        assert all(torch.equal(tensor, fresh[key]) for key, tensor in expanded.head.branches.new().items())


def test_the_normalised_classifier_keeps_nothing_of_the_last_expanded_model(digits: Stream) -> None:
    learner = learnt("mec", digits, 2, head="norm")
    assert isinstance(expanded_head(learner), NormHead)
    expansion = recorded(learner, digits[2])[0]
    assert expansion.stage.name == "expansion"
    before, after = (
        {key: tensor for key, tensor in state.items() if key.startswith("head.branches.")}
        for state in (expansion.before, expansion.after)
    )
    assert torch.equal(before["head.branches.new_scale"], torch.ones(128))
    assert not torch.equal(after["head.branches.new_scale"], torch.ones(128))
    assert not before["head.branches.norm.running_mean"].any()
