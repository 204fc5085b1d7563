"""Nets of several backbones: how they start from the net before, what they train, and what they weigh."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drcil.heads import LinearHead
from drcil.keys import generator, randomness
from drcil.methods.expansion import expand, widened
from drcil.methods.remedies import classifier_of
from drcil.nets.build import build_backbone
from drcil.nets.expanded import ExpandedNet, members_of
from drcil.nets.net import Net
from drcil.nets.output import Output
from small_engine import make_net

IMAGES = torch.rand(5, 1, 8, 8, generator=generator("images"))
OLD, ALL = 4, 6


def make_expanded(previous: Net, auxiliary_classes: int = ALL) -> ExpandedNet:
    with randomness("expanded"):
        head = LinearHead(previous.backbone.channels + 64)
        for classes in (OLD, ALL - OLD):
            head.grow(classes)
        return expand(previous, head, auxiliary_classes)


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in module.state_dict().values()]


def answer(net: nn.Module) -> Output:
    with torch.no_grad():
        output: Output = net.eval()(IMAGES)
    return output


sizes = st.integers(1, 6)


@given(old_channels=sizes, new_channels=sizes, old=sizes, new=sizes, seed=st.integers(0, 999))
def test_a_widened_classifier_says_of_old_classes_what_it_did_where_new_channels_are_silent(
    old_channels: int, new_channels: int, old: int, new: int, seed: int
) -> None:
    with randomness(seed):
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


def test_only_the_newest_backbone_and_the_classifiers_take_gradients() -> None:
    twice = make_expanded(make_expanded(make_net(OLD)))
    *earlier, newest = members_of(twice)
    assert len(earlier) == 2
    for member in earlier:
        assert member(IMAGES).last.grad_fn is None
    output = twice(IMAGES)
    (output.logits.fused.sum() + output.logits.extras["auxiliary"].sum()).backward()
    assert all(parameter.grad is None for member in earlier for parameter in member.parameters())
    trained = [newest, twice.head, twice.auxiliary]
    assert all(parameter.grad is not None for module in trained for parameter in module.parameters())


def test_what_is_trained_of_an_expanded_net_is_not_the_previous_one() -> None:
    """Frozen backbones are shared, not copied; nothing else is."""
    previous = make_net(OLD)
    before = weights_of(previous)
    expanded = make_expanded(previous)
    assert members_of(expanded)[0] is previous.backbone
    trained = [parameter for parameter in expanded.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter in trained:
            parameter.zero_()
    assert all(map(torch.equal, before, weights_of(previous)))
    assert len(trained) == len(list(previous.parameters())) + 2, "a backbone, a classifier and the auxiliary one"


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
