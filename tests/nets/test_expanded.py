"""Nets of several backbones: how they start from the net before, what they train, and what they weigh."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drcil.heads import LinearHead
from drcil.methods.expansion import expand, widened
from drcil.methods.rebalancing import classifier_of
from drcil.nets.backbone import build_backbone
from drcil.nets.expanded import ExpandedNet, members_of
from drcil.nets.net import Net, Output
from drcil.seeding import generator, seeded_torch
from support.engine import make_net

pytestmark = pytest.mark.numerical

IMAGES = torch.rand(5, 1, 8, 8, generator=generator("images"))
OLD, ALL = 4, 6


def make_expanded(previous: Net, auxiliary_classes: int = ALL) -> ExpandedNet:
    with seeded_torch("expanded"):
        head = LinearHead(previous.backbone.channels + 64)
        for classes in (OLD, ALL - OLD):
            head.grow(classes)
        return expand(previous, head, auxiliary_classes)


def answer(net: nn.Module) -> Output:
    with torch.no_grad():
        output: Output = net.eval()(IMAGES)
    return output


sizes = st.integers(1, 6)


@given(old_channels=sizes, new_channels=sizes, old=sizes, new=sizes, seed=st.integers(0, 999))
def test_a_widened_classifier_says_of_old_classes_what_it_did_where_new_channels_are_silent(
    old_channels: int, new_channels: int, old: int, new: int, seed: int
) -> None:
    with seeded_torch(seed):
        known = nn.Linear(old_channels, old)
        wide = widened(known, old_channels + new_channels, old + new)
        features = torch.randn(3, old_channels)
    silent = torch.cat([features, torch.zeros(3, new_channels)], dim=1)
    assert torch.allclose(wide(silent)[:, :old], known(features), atol=1e-6)
    fresh = wide.weight[old:]
    assert fresh.abs().max() <= (3 / (old_channels + new_channels)) ** 0.5
    assert wide.bias[old:].eq(0).all()


def test_an_expanded_net_starts_as_the_previous_one_if_the_new_backbone_is_not_heard() -> None:
    previous = make_net(OLD)
    expanded = make_expanded(previous)
    with torch.no_grad():
        classifier_of(expanded).weight[:, 64:] = 0
    assert torch.allclose(answer(expanded).logits.fused[:, :OLD], answer(previous).logits.fused, atol=1e-5)
    features = answer(expanded).features.pooled
    assert torch.equal(features[:, :64], features[:, 64:])


def test_expanding_shares_the_old_backbone_and_leaves_the_previous_net_unchanged() -> None:
    previous = make_net(OLD)
    before = copy.deepcopy(previous.state_dict())
    expanded = make_expanded(previous)
    assert members_of(expanded)[0] is previous.backbone
    assert all(parameter.requires_grad for parameter in previous.parameters())
    shared = set(previous.parameters()) & set(expanded.parameters())
    assert shared == set(previous.backbone.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in previous.state_dict().items())


def test_an_expanded_net_also_answers_as_the_previous_one_did() -> None:
    previous = make_net(OLD)
    expected = answer(previous).logits.fused
    expanded = make_expanded(previous)
    assert torch.allclose(answer(expanded).logits.extras["previous"], expected, atol=1e-6)
    with torch.no_grad():
        for parameter in (*expanded.head.parameters(), *members_of(expanded)[-1].parameters()):
            parameter.zero_()
    assert torch.allclose(answer(expanded).logits.extras["previous"], expected, atol=1e-6)
    assert not [name for name in expanded.state_dict() if "previous" in name], "it is not saved"


def test_the_auxiliary_classifier_sees_the_newest_backbone_alone() -> None:
    expanded = make_expanded(make_net(OLD))
    before = answer(expanded).logits
    with torch.no_grad():
        for parameter in members_of(expanded)[0].parameters():
            parameter.mul_(0.5)
    after = answer(expanded).logits
    assert not torch.allclose(before.fused, after.fused, atol=1e-2)
    assert torch.equal(before.extras["auxiliary"], after.extras["auxiliary"])


def test_a_folded_expanded_net_answers_the_same_without_the_auxiliary_classifier() -> None:
    expanded = make_expanded(make_expanded(make_net(OLD)))
    folded = expanded.fold()
    assert torch.allclose(answer(folded).logits.fused, answer(expanded).logits.fused, atol=1e-4)
    assert not answer(folded).logits.extras
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


@pytest.mark.parametrize(
    ("backbones", "auxiliary_classes", "size"),
    [(2, 100, 939_908), (5, 21, 2_349_620), (10, 11, 4_699_140), (20, 6, 9_398_180)],
)
def test_sizes_at_100_classes_are_those_of_the_literature(backbones: int, auxiliary_classes: int, size: int) -> None:
    """FOSTER before compression, and DER after 5, 10 and 20 tasks: without what serves training alone."""
    head = LinearHead(64 * backbones)
    head.grow(100)
    net = ExpandedNet([build_backbone("resnet32", 3) for _ in range(backbones)], head, auxiliary_classes)
    assert net.size() == size
    assert sum(parameter.numel() for parameter in net.parameters()) == size + 65 * auxiliary_classes
