"""LUCIR: the margin term, imprinted rows, frozen rows."""

from __future__ import annotations

import math

import pytest
import torch

import drcil
from drcil.heads import CosineHead
from drcil.methods.lucir import imprint
from drcil.objectives import margin_ranking
from drcil.seeding import generator
from support.stage_recorder import Seen, recorded

pytestmark = pytest.mark.numerical


def cosines_of(seed: int, samples: int, classes: int) -> torch.Tensor:
    return 2 * torch.rand(samples, classes, generator=generator(seed), dtype=torch.float64) - 1


def test_the_margin_by_hand() -> None:
    """One old sample of class 0, nearest new classes at 0.5 and 0.2: (0.5 - 0.4 + 0.5 + 0.5 - 0.4 + 0.2) / 2."""
    cosines = torch.tensor([[0.4, -1.0, 0.2, 0.5, 0.1], [0.9, 0.9, 0.9, -0.9, 0.9]])
    term = margin_ranking(cosines, torch.tensor([0, 3]), 2, margin=0.5, hardest=2, weight=3.0)
    assert term.value.item() == pytest.approx(0.45)
    assert term.weight == 3.0
    assert term.over is not None
    assert term.over(torch.tensor([0, 3])).tolist() == [True, False]


def test_without_an_old_sample_the_margin_neither_counts_nor_pulls() -> None:
    cosines = cosines_of(0, 4, 5).requires_grad_()
    term = margin_ranking(cosines, torch.tensor([2, 3, 4, 2]), 2, margin=0.5, hardest=2)
    term.value.backward()
    assert term.value.item() == 0
    assert cosines.grad is not None
    assert bool((cosines.grad == 0).all())


def test_imprinted_rows_point_to_their_class_with_the_mean_length_of_old_rows() -> None:
    head = CosineHead(2)
    head.grow(2)
    head.new_rows.data = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]])
    head.grow(2)
    features = torch.tensor([[5.0, 0.0], [0.0, 0.1], [-2.0, 0.0]])
    imprint(head, features, torch.tensor([2, 2, 3]))
    half = math.sqrt(0.5)
    # Lengths 5 and 1 have the mean 3; the strong and the weak feature of class 2 count alike.
    expected = torch.tensor([[[3 * half, 3 * half]], [[-3.0, 0.0]]])
    torch.testing.assert_close(head.new_rows.detach(), expected)
    assert torch.equal(head.old_rows, torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]]))


def after_two_tasks(**settings: bool) -> tuple[drcil.Learner, list[Seen]]:
    """A learner after two short tasks, and the stages of the second."""
    first, second = drcil.stream("digits-b0-5")[:2]
    learner = drcil.Learner("lucir", epochs_scale=0.05, memory="20", device="cpu", settings=settings)
    learner.learn(first)
    return learner, recorded(learner, second)


def test_old_rows_stay_the_same_and_new_rows_start_imprinted() -> None:
    learner, (later,) = after_two_tasks()
    assert torch.equal(later.after["head.old_rows"], later.before["head.old_rows"])
    assert {"head.new_rows", "head.scale"} <= later.changed()
    new = drcil.stream("digits-b0-5")[1].new
    features = learner.engine.features(later.stage.teachers["previous"], new)
    length = later.before["head.old_rows"].norm(dim=2).mean()
    for label in (2, 3):
        mean = torch.nn.functional.normalize(features[torch.from_numpy(new.labels == label)], dim=1).mean(dim=0)
        row = later.before["head.new_rows"][label - 2, 0]
        torch.testing.assert_close(row.norm(), length)
        assert torch.cosine_similarity(row, mean, dim=0).item() == pytest.approx(1, abs=1e-5)


def test_balancing_trains_all_rows_of_the_classifier() -> None:
    _, (_, balancing) = after_two_tasks(balancing=True)
    assert balancing.stage.data.counts(4).tolist() == [10] * 4
    assert balancing.changed() == balancing.trained == {"head.old_rows", "head.new_rows", "head.scale"}
