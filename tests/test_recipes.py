"""Recipes by name and by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drcil.errors import UserError
from drcil.methods import METHODS
from drcil.methods.resolve import resolve_settings
from drcil.recipes import load_recipe, merge
from drcil.schedules import Schedule

# fmt: off
SCHEDULES = {
    # method, stage:         epochs, lr, weight decay, milestones (none: cosine)
    ("replay", "first"):       (200, 0.1, 5e-4, 60, 120, 170),
    ("replay", "later"):        (70, 0.1, 2e-4, 30, 50),
    ("finetune", "first"):     (200, 0.1, 5e-4, 60, 120, 170),
    ("finetune", "later"):      (80, 0.1, 2e-4, 40, 70),
    ("icarl", "first"):        (200, 0.1, 5e-4, 60, 120, 170),
    ("icarl", "later"):        (170, 0.1, 2e-4, 80, 120),
    ("eeil", "first"):          (90, 0.1, 1e-3, 50, 60),
    ("eeil", "later"):          (60, 0.1, 1e-3, 40, 50),
    ("eeil", "finetuning"):     (40, 0.01, 1e-3, 10, 20),
    ("bic", "first"):          (170, 0.1, 2e-4, 60, 100, 140),
    ("bic", "later"):          (170, 0.1, 2e-4, 60, 100, 140),
    ("bic", "bias"):           (170, 0.1, 2e-4, 60, 100, 140),
    ("wa", "first"):           (200, 0.1, 5e-4, 60, 120, 170),
    ("wa", "later"):           (170, 0.1, 2e-4, 60, 100, 140),
    ("lucir", "first"):        (160, 0.1, 5e-4, 80, 120),
    ("lucir", "later"):        (160, 0.1, 5e-4, 80, 120),
    ("lucir", "finetuning"):    (20, 0.01, 5e-4, 10),
    ("podnet", "first"):       (160, 0.1, 5e-4),
    ("podnet", "later"):       (160, 0.1, 5e-4),
    ("podnet", "finetuning"):   (20, 0.005, 5e-4),
    ("der", "first"):          (200, 0.1, 5e-4, 60, 120, 170),
    ("der", "expansion"):      (170, 0.1, 2e-4, 80, 120, 150),
    ("der", "retraining"):      (30, 0.1, 5e-4, 15),
    ("foster", "first"):       (200, 0.1, 5e-4),
    ("foster", "boosting"):    (170, 0.1, 5e-4),
    ("foster", "compression"): (130, 0.1, 0.0),
    ("mdt", "first"):          (200, 0.1, 5e-4, 60, 120, 170),
    ("mdt", "transfer"):       (170, 0.1, 2e-4, 80, 120),
    ("mdt", "finetuning"):      (30, 0.1, 5e-4, 15),
    ("mec", "first"):          (200, 0.1, 5e-4),
    ("mec", "expansion"):      (170, 0.1, 5e-4),
    ("mec", "compression"):    (130, 0.1, 0.0),
    ("mec", "finetuning"):      (30, 0.1, 5e-4, 15),
    ("maf", "first"):          (200, 0.1, 5e-4),
    ("maf", "adaptation"):      (70, 0.1, 5e-4),
    ("maf", "fusion"):         (130, 0.1, 0.0),
    ("maf", "finetuning"):      (30, 0.1, 5e-4, 15),
}
"""How the compared methods are trained, on CIFAR and, but for the next table, on ImageNet."""
OWN_ON_IMAGENET = {
    ("lucir", "first"):         (90, 0.1, 1e-4, 30, 60),
    ("lucir", "later"):         (90, 0.1, 1e-4, 30, 60),
    ("lucir", "finetuning"):    (20, 0.01, 1e-4, 10),
}
CONSTANTS: dict[str, dict[str, Any]] = {
    "replay": {},
    "finetune": {},
    "icarl": {"temperature": 2, "distillation": 1},
    "eeil": {"temperature": 2, "distillation": 1, "distillation_form": "binary", "noise": 0},
    "bic": {"temperature": 2, "held_share": 0.1, "corrections": "all"},
    "wa": {"temperature": 2, "weighting": "lambda", "distillation": 2, "nonnegative": False},
    "lucir": {"steadiness": 5, "margin": 0.5, "hardest": 2, "ranking": 1, "balancing": False},
    "podnet": {"proxies": 10, "nca": "published", "margin": 0.6, "spatial": 5, "flat": 1},
    "der": {"auxiliary": 1, "balancing": "align", "temperature": 5},
    "foster": {
        "temperature": 2, "distillation": 1, "auxiliary": 1, "boosting_betas": (0.96,), "compression_beta": 0.97,
    },
    "mdt": {"temperature": 2, "distillation": 1, "alpha": 0.2, "tro": 1.2},
    "mec": {"temperature": 2, "distillation": 1, "auxiliary": 1, "alpha": 0.2, "tro": 1.2},
    "maf": {"old_distillation": 4, "new_distillation": 4, "alpha": 0.2, "tro": 1.2, "student": "adapted"},
}
"""Weights and other numbers of their losses, likewise."""
CONSTANTS_ON_IMAGENET: dict[str, dict[str, Any]] = {
    "lucir": {"steadiness": 10},
    "der": {"temperature": 1},
    "maf": {"student": "previous"},
}
# fmt: on


@pytest.mark.parametrize("kind", ["cifar", "imagenet"])
@pytest.mark.parametrize("method", list(CONSTANTS))
def test_compared_methods_are_trained_by_the_constants_of_the_field(method: str, kind: str) -> None:
    settings = resolve_settings(METHODS[method], kind, {})
    table = SCHEDULES | (OWN_ON_IMAGENET if kind == "imagenet" else {})
    expected = {}
    for (name, stage), (epochs, lr, decay, *milestones) in table.items():
        if name == method:
            curve = {"curve": "steps" if milestones else "cosine", "milestones": milestones}
            common = {"batch_size": 128, "optimizer": "sgd", "momentum": 0.9, "factor": 0.1, "lr_end": 0, "warmup": 0}
            given = {"epochs": epochs, "lr": lr, "weight_decay": decay, **curve, **common}
            expected[stage] = Schedule.model_validate(given)
    assert settings.schedules() == expected
    constants = CONSTANTS[method] | (CONSTANTS_ON_IMAGENET.get(method, {}) if kind == "imagenet" else {})
    assert {name: getattr(settings, name) for name in constants} == constants


@pytest.mark.parametrize("kind", ["digits", "cifar", "imagenet"])
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_a_recipe_for_every_kind_of_data(method: str, kind: str) -> None:
    spec = METHODS[method]
    spec.build.Settings.model_validate(merge(load_recipe(spec.recipe, kind), spec.presets))


def test_a_recipe_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[common]\nweight = 1.0\n[common.first]\nepochs = 9\nlr = 0.1\n[digits.first]\nepochs = 3\n")
    assert load_recipe(path, "digits") == {"weight": 1.0, "first": {"epochs": 3, "lr": 0.1}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "own.toml cannot be read: No such file"),
        ("[digits", "own.toml is not valid TOML"),
        ("[common]\n[cifar]", "says nothing of data of kind 'digits'; it has: cifar"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=told):
        load_recipe(path, "digits")
