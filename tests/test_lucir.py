"""LUCIR: the margin term against plain loops, imprinted rows, frozen rows, and the weight of the feature term."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drcil
from drcil.heads import CosineHead
from drcil.keys import generator
from drcil.methods.lucir import Lucir, imprint
from drcil.objectives import margin_ranking
from drcil.stages import Batch, Stage
from drcil.train.engine import TrainingEngine

seeds = st.integers(0, 10_000)


def cosines_of(seed: int, samples: int, classes: int) -> torch.Tensor:
    return 2 * torch.rand(samples, classes, generator=generator(seed), dtype=torch.float64) - 1


def test_the_margin_by_hand() -> None:
    """One old sample of class 0, nearest new classes at 0.5 and 0.2: (0.5 - 0.4 + 0.5 + 0.5 - 0.4 + 0.2) / 2."""
    cosines = torch.tensor([[0.4, -1.0, 0.2, 0.5, 0.1], [0.9, 0.9, 0.9, -0.9, 0.9]])
    term = margin_ranking(cosines, torch.tensor([0, 3]), 2, margin=0.5, hardest=2, weight=3.0)
    assert term.value.item() == pytest.approx(0.45)
    assert term.weight == 3.0
    assert term.count is not None
    assert term.count.item() == 1


@given(seeds, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.floats(0, 1))
def test_the_margin_is_the_mean_it_says(seed: int, old: int, new: int, hardest: int, margin: float) -> None:
    cosines = cosines_of(seed, 6, old + new)
    labels = torch.randint(old + new, (6,), generator=generator(seed, "labels"))
    excesses = [
        max(0.0, margin - row[label] + rival)
        for row, label in zip(cosines.tolist(), labels.tolist(), strict=True)
        if label < old
        for rival in sorted(row[old:], reverse=True)[:hardest]
    ]
    slow = sum(excesses) / len(excesses) if excesses else 0.0
    term = margin_ranking(cosines, labels, old, margin=margin, hardest=hardest)
    assert term.value.item() == pytest.approx(slow, abs=1e-12)


def test_without_an_old_sample_the_margin_neither_counts_nor_pulls() -> None:
    cosines = cosines_of(0, 4, 5).requires_grad_()
    term = margin_ranking(cosines, torch.tensor([2, 3, 4, 2]), 2, margin=0.5, hardest=2)
    term.value.backward()  # type: ignore[no-untyped-call]
    assert term.value.item() == 0
    assert term.count is not None
    assert term.count.item() == 0
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


def stages_of_task_2(
    monkeypatch: pytest.MonkeyPatch, **settings: float | bool
) -> tuple[drcil.Learner, list[Stage], list[CosineHead]]:
    """A learner after two short tasks, the stages of the second, and the head as each of them found it."""
    stream = drcil.stream("digits-b0-5")
    learner = drcil.Learner("lucir", epochs_scale=0.05, memory="20", device="cpu", settings=settings)
    learner.learn(stream[0])
    stages: list[Stage] = []
    heads: list[CosineHead] = []
    fit = TrainingEngine.fit

    def noted(engine: TrainingEngine, stage: Stage) -> None:
        stages.append(stage)
        head = stage.net.get_submodule("head")
        assert isinstance(head, CosineHead)
        heads.append(copy.deepcopy(head))
        fit(engine, stage)

    monkeypatch.setattr(TrainingEngine, "fit", noted)
    learner.learn(stream[1])
    return learner, stages, heads


def test_old_rows_stay_and_new_rows_begin_imprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (later,), (before,) = stages_of_task_2(monkeypatch)
    after = learner.method.net.head
    assert isinstance(after, CosineHead)
    assert torch.equal(after.old_rows, before.old_rows)
    assert not torch.equal(after.new_rows, before.new_rows)
    assert not torch.equal(after.scale, before.scale)
    new = drcil.stream("digits-b0-5")[1].new
    features = learner.engine.features(later.teachers["previous"], new)
    length = before.old_rows.norm(dim=2).mean()
    for label in (2, 3):
        own = torch.nn.functional.normalize(features[torch.from_numpy(new.labels == label)], dim=1).mean(dim=0)
        row = before.new_rows[label - 2, 0]
        torch.testing.assert_close(row.norm(), length)
        assert torch.cosine_similarity(row, own, dim=0).item() == pytest.approx(1, abs=1e-5)


def test_the_feature_term_grows_with_the_share_of_old_classes() -> None:
    stream = drcil.stream("digits-6/2")
    learner = drcil.Learner("lucir", epochs_scale=0.02, memory="20", device="cpu", settings={"steadiness": 2.0})
    learner.learn(stream[0])
    weights: list[float] = []
    fit = learner.engine.fit

    def noted(stage: Stage) -> None:
        images, labels = torch.randn(4, 1, 8, 8, generator=generator("images")), torch.arange(4)
        teachers = {name: teacher(images) for name, teacher in stage.teachers.items()}
        weights.append(stage.objective(stage.net(images), teachers, Batch(labels, labels))["steadiness"].weight)
        fit(stage)

    learner.engine.fit = noted  # type: ignore[method-assign]
    learner.learn(stream[1])
    assert weights == [pytest.approx(2.0 * math.sqrt(6 / 2))]


def test_balancing_trains_the_classifier_alone_old_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, (later, balancing), (_, before) = stages_of_task_2(monkeypatch, balancing=True)
    method = learner.method
    assert isinstance(method, Lucir)
    assert (later.name, balancing.name) == ("later", "finetuning")
    assert balancing.data.counts(4).tolist() == [10] * 4
    assert not torch.equal(method.cosine_head.old_rows, before.old_rows)
    assert {id(one) for group in balancing.groups or () for one in group.parameters} == set(
        map(id, method.cosine_head.parameters())
    )
