"""Remedies that act while a pipeline learns: class-balanced weights, focal loss and class-balanced sampling."""

from __future__ import annotations

import pytest
import torch

from drcil.cli import main
from drcil.errors import UserError
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.objectives import fusion_loss
from drcil.streams.samplers import class_balanced, shuffle
from support import reference_losses as reference
from support.stage_recorder import losses
from support.two_tasks import ALL, BOTH, GIVEN, IMAGES, LABELS, OLD, Scene, two_tasks

pytestmark = pytest.mark.numerical


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
        assert value == pytest.approx(
            reference.cross_entropy(logits, labels - first, reference.class_weights(counts, 0.9999), 2.0),
            rel=1e-4,
        ), name


def test_beta_and_gamma_can_be_set() -> None:
    scene = two_tasks("mdt+cb", cb_beta=0.5)
    value = losses(scene.stage("transfer"), IMAGES, LABELS)["fusion"].value.item()
    assert value == pytest.approx(
        reference.cross_entropy(scene.logits("transfer"), LABELS, reference.class_weights(BOTH, 0.5), 0),
        rel=1e-4,
    )
    scene = two_tasks("mdt+focal", focal_gamma=0.5)
    value = losses(scene.stage("transfer"), IMAGES, LABELS)["fusion"].value.item()
    assert value == pytest.approx(reference.cross_entropy(scene.logits("transfer"), LABELS, [1.0] * ALL, 0.5), rel=1e-4)


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
