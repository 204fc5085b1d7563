"""Remedies that act while a pipeline learns: class-balanced weights, focal loss and class-balanced sampling."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.cli import main
from drcil.errors import UserError
from drcil.keys import generator
from drcil.methods import METHODS
from drcil.methods.resolve import resolve_settings
from drcil.objectives import fusion_loss
from drcil.streams.samplers import class_balanced, shuffle
from recording import losses
from scene import ALL, BOTH, GIVEN, IMAGES, LABELS, OLD, Scene, two_tasks


def plain(logits: Tensor, labels: Tensor, weights: list[float], gamma: float) -> float:
    """1/n Σ_i w_{y_i} (1 - p_i)^γ · -log p_i, sample by sample."""
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        p = math.exp(row[label]) / sum(map(math.exp, row))
        total -= weights[label] * (1 - p) ** gamma * math.log(p)
    return total / len(labels)


def effective(counts: list[int], beta: float = 0.9999) -> list[float]:
    """(1 - β) / (1 - β^m) of every class, of mean 1."""
    weights = [(1 - beta) / (1 - beta**count) for count in counts]
    return [weight * len(weights) / sum(weights) for weight in weights]


@given(st.integers(0, 10**6), st.floats(0, 5), st.lists(st.floats(0.01, 10), min_size=4, max_size=4))
def test_weights_and_focus_are_the_slow_formula(seed: int, gamma: float, weights: list[float]) -> None:
    logits = 3 * torch.randn(6, 4, generator=generator("focal", seed), dtype=torch.float64)
    labels = torch.arange(6) % 4
    adjustment = torch.tensor([0.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    value = fusion_loss(logits, labels, adjustment, torch.tensor(weights, dtype=torch.float64), gamma)
    assert value.item() == pytest.approx(plain(logits + adjustment, labels, weights, gamma), rel=1e-9)


def test_a_sample_that_is_known_for_certain_has_no_focal_loss_and_a_finite_gradient() -> None:
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    value = fusion_loss(logits, torch.tensor([0]), gamma=0.5)
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


@pytest.fixture(scope="module")
def focal() -> Scene:
    return two_tasks("maf+focal+cb")


def test_every_stage_that_classifies_is_weighted_by_its_own_images(focal: Scene) -> None:
    stages = {
        "first": ("classification", LABELS % OLD, [GIVEN] * OLD, 0),
        "adaptation": ("adaptation", OLD + LABELS % (ALL - OLD), [GIVEN] * (ALL - OLD), OLD),
        "fusion": ("fusion", LABELS, BOTH, 0),
    }
    for name, (term, labels, counts, first) in stages.items():
        value = losses(focal.stage(name), IMAGES, labels)[term].value.item()
        logits = focal.logits(name)[:, first:]
        assert value == pytest.approx(plain(logits, labels - first, effective(counts), 2.0), rel=1e-4), name


def test_beta_and_gamma_can_be_set() -> None:
    scene = two_tasks("mdt+cb", cb_beta=0.5)
    value = losses(scene.stage("transfer"), IMAGES, LABELS)["fusion"].value.item()
    assert value == pytest.approx(plain(scene.logits("transfer"), LABELS, effective(BOTH, 0.5), 0), rel=1e-4)
    scene = two_tasks("mdt+focal", focal_gamma=0.5)
    value = losses(scene.stage("transfer"), IMAGES, LABELS)["fusion"].value.item()
    assert value == pytest.approx(plain(scene.logits("transfer"), LABELS, [1.0] * ALL, 0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("method", "balanced", "others"),
    [
        ("maf", ["first", "adaptation", "fusion"], []),
        ("mec+drc", ["first", "expansion"], ["compression"]),
        ("mdt", ["first", "transfer"], []),
    ],
)
def test_balanced_sampling_is_for_stages_that_classify(method: str, balanced: list[str], others: list[str]) -> None:
    scene = two_tasks(f"{method}+balanced-sampling")
    assert {*balanced, *others} == scene.stages.keys()
    assert all(scene.stage(name).sampler is class_balanced for name in balanced)
    assert all(scene.stage(name).sampler is shuffle for name in others)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mafdrc+cb", "'la' and 'cb' make up for rare classes in training, each of them fully; choose one of them"),
        ("maf+cb+balanced-sampling", "'cb' and 'balanced-sampling' make up"),
        ("maf+balanced-sampling+la", "'balanced-sampling' and 'la' make up"),
        ("maf+focal+focal", "the same remedy twice"),
    ],
)
def test_remedies_that_do_the_same_twice_are_refused(name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        resolve_settings(METHODS[name], "digits", {})


@pytest.mark.parametrize("setting", [{"cb_beta": 1.0}, {"cb_beta": -0.1}, {"focal_gamma": 0}])
def test_numbers_that_make_no_sense_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(setting))):
        resolve_settings(METHODS["maf+cb+focal"], "digits", setting)


@pytest.mark.parametrize("name", ["maf+wa", "maf+bft", "mdt+drc+la+focal", "maf+drc+cb+two-stage"])
def test_remedies_that_do_different_things_are_taken_together(name: str) -> None:
    resolve_settings(METHODS[name], "digits", {})


def test_a_remedy_is_named_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "maf+la", "digits-b0-5", "--remedy", "cb"]) == 2
    assert "'maf+la' says 'la' by its name, so --remedy cannot say 'cb'; give one" in capsys.readouterr().err
    assert main(["run", "mafdrc+cb", "digits-b0-5"]) == 2
    told = capsys.readouterr().err
    assert "'remedies': 'la' and 'cb' make up for rare classes" in told
