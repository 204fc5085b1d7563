"""The cosine head: directions alone count, old rows stay, several proxies vote; and the backbones made for it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.errors import UserError
from drcil.heads import CosineHead
from drcil.keys import randomness
from drcil.nets.build import build_backbone, build_head, build_net
from drcil.nets.net import Net

widths = st.integers(2, 6)
proxy_counts = st.sampled_from([1, 3, 10])
task_lists = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def grown(channels: int, proxies: int, tasks: list[int]) -> CosineHead:
    """A double-precision head that has been through these tasks, each of which taught it something."""
    with randomness("test", channels, proxies, str(tasks)):
        head = CosineHead(channels, proxies).double()
        for new_classes in tasks:
            head.grow(new_classes)
            with torch.no_grad():
                head.new_rows.add_(torch.randn_like(head.new_rows))
                head.scale.add_(0.7)
    return head


def vectors(channels: int) -> Tensor:
    with randomness("test", "vectors", channels):
        return torch.randn(5, channels, dtype=torch.float64)


@given(widths, proxy_counts, task_lists)
def test_the_score_is_the_softmax_weighted_sum_of_cosines(channels: int, proxies: int, tasks: list[int]) -> None:
    head = grown(channels, proxies, tasks)
    logits = head(vectors(channels))
    for i, feature in enumerate(vectors(channels).tolist()):
        for c, rows in enumerate(head.rows().tolist()):
            near = [
                sum(map(math.prod, zip(feature, row, strict=True))) / math.hypot(*feature) / math.hypot(*row)
                for row in rows
            ]
            powers = [math.exp(value) for value in near]
            slow = sum(power * value for power, value in zip(powers, near, strict=True)) / sum(powers)
            assert logits.extras["cosines"][i, c].item() == pytest.approx(slow, abs=1e-12)
            assert logits.fused[i, c].item() == pytest.approx(head.scale.item() * slow, abs=1e-12)


@given(widths, proxy_counts, task_lists, st.floats(0.01, 100))
def test_lengths_play_no_part(channels: int, proxies: int, tasks: list[int], length: float) -> None:
    head = grown(channels, proxies, tasks)
    before = head(vectors(channels)).fused
    with torch.no_grad():
        head.new_rows.mul_(length)
    torch.testing.assert_close(head(length * vectors(channels)).fused, before)
    assert (before.abs() <= head.scale + 1e-12).all()


@given(widths, proxy_counts, task_lists, st.integers(1, 4))
def test_growing_keeps_every_row_and_opens_fresh_ones(channels: int, proxies: int, tasks: list[int], more: int) -> None:
    head = grown(channels, proxies, tasks)
    rows, scale, before = head.rows().detach(), head.scale.item(), head(vectors(channels)).fused
    head.grow(more)
    assert torch.equal(head.old_rows, rows)
    assert head.new_rows.shape == (more, proxies, channels)
    assert (head.new_rows.abs() <= 1 / math.sqrt(channels)).all()
    assert head.scale.item() == scale
    torch.testing.assert_close(head(vectors(channels)).fused[:, : len(rows)], before, rtol=0, atol=1e-14)


@given(widths, proxy_counts, task_lists)
def test_maps_are_pooled_and_folding_changes_no_answer(channels: int, proxies: int, tasks: list[int]) -> None:
    head = grown(channels, proxies, tasks)
    maps = vectors(channels)[:, :, None, None] + torch.tensor([[-1.0, 1.0], [2.0, -2.0]], dtype=torch.float64)
    expected = head(vectors(channels)).fused
    torch.testing.assert_close(head(maps).fused, expected)
    torch.testing.assert_close(head.fold()(vectors(channels)), expected)
    assert not any(tensor.requires_grad for tensor in head.fold().state_dict().values())


def test_fresh_rows_are_uniform_and_the_scale_starts_at_one() -> None:
    with randomness("test"):
        head = CosineHead(64, 10)
        head.grow(50)
    assert head.scale.item() == 1
    # The standard deviation of a uniform distribution in ±1/8.
    assert head.new_rows.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.02)


def test_a_head_is_refused_without_proxies_and_a_task_without_classes() -> None:
    with pytest.raises(
        UserError, match="the number of proxies of a class must be a whole number from 1 to 1048576, not 0"
    ):
        CosineHead(4, 0)
    with pytest.raises(UserError, match="the number of new classes must be a whole number from 1 to 1048576, not 0"):
        CosineHead(4).grow(0)


@pytest.mark.parametrize(("proxies", "head_size", "size"), [(1, 6_401, 472_657), (10, 64_001, 530_257)])
def test_sizes_at_100_classes(proxies: int, head_size: int, size: int) -> None:
    """LUCIR's and PODNet's stored models with ResNet-32."""
    net = Net(build_backbone("resnet32", 3, shortcut="projected", last_relu=False), CosineHead(64, proxies))
    for _ in range(10):
        net.head.grow(10)
    assert sum(parameter.numel() for parameter in net.head.parameters()) == head_size
    assert sum(parameter.numel() for parameter in net.parameters()) == size


@pytest.mark.parametrize("proxies", [1, 10])
def test_a_net_is_folded_and_rebuilt_without_another_answer(proxies: int) -> None:
    with randomness("test"):
        backbone = build_backbone("resnet-digits", 1, shortcut="projected", last_relu=False)
        net = Net(backbone, build_head("cosine", 64, proxies=proxies))
        net.head.grow(3)
        net.head.grow(2)
        images = torch.rand(16, 1, 8, 8)
        net.train()(images)
    net.eval()
    again = build_net(json.loads(json.dumps(net.describe()))).eval()
    again.load_state_dict(net.state_dict())
    with torch.no_grad():
        expected = net(images).logits.fused
        assert torch.equal(again(images).logits.fused, expected)
        torch.testing.assert_close(net.fold()(images).logits.fused, expected, rtol=0, atol=1e-5)
