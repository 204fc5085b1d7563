"""The cosine head: directions alone count, old rows stay, several proxies vote; and the backbones made for it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.heads import CosineHead
from drcil.seeding import seeded_torch

pytestmark = pytest.mark.numerical

widths = st.integers(2, 6)
proxy_counts = st.sampled_from([1, 3, 10])
task_lists = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def grown(channels: int, proxies: int, tasks: list[int]) -> CosineHead:
    """A double-precision head that has been through these tasks, each of which taught it something."""
    with seeded_torch("test", channels, proxies, str(tasks)):
        head = CosineHead(channels, proxies).double()
        for new_classes in tasks:
            head.grow(new_classes)
            with torch.no_grad():
                head.new_rows.add_(torch.randn_like(head.new_rows))
                head.scale.add_(0.7)
    return head


def vectors(channels: int) -> Tensor:
    with seeded_torch("test", "vectors", channels):
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


def test_fresh_rows_are_uniform_and_the_scale_starts_at_one() -> None:
    with seeded_torch("test"):
        head = CosineHead(64, 10)
        head.grow(50)
    assert head.scale.item() == 1
    # The standard deviation of a uniform distribution in ±1/8.
    assert head.new_rows.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.02)
