"""The linear head with one affine correction per task (BiC)."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drcil.heads.linear import CorrectedHead
from support.heads import maps, trained_head

pytestmark = pytest.mark.numerical


@given(channels=st.integers(1, 6), tasks=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_a_pair_maps_the_logits_of_its_task_only(channels: int, tasks: list[int]) -> None:
    head = trained_head("corrected", channels, tasks)
    assert isinstance(head, CorrectedHead)
    features = maps(channels).mean(dim=(2, 3))
    plain = head.classifier(features)
    for number, size in enumerate(tasks):
        other = copy.deepcopy(head)
        other.pairs[number].data.copy_(torch.tensor([3.0, -7.0]))
        columns = slice(sum(tasks[:number]), sum(tasks[:number]) + size)
        expected = head(features).fused.clone()
        expected[:, columns] = 3 * plain[:, columns] - 7
        torch.testing.assert_close(other(features).fused, expected)


def test_a_task_starts_without_a_correction_and_its_pair_is_not_trained_by_default() -> None:
    head = trained_head("corrected", 3, [2, 2])
    assert isinstance(head, CorrectedHead)
    head.grow(2)
    assert head.newest.tolist() == [1, 0]
    trained = {name for name, parameter in head.named_parameters() if parameter.requires_grad}
    assert trained == {"classifier.weight", "classifier.bias"}
