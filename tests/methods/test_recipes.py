"""Recipes by name and by path."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from drcil.data.dataset import DATASETS, data_kind, load_dataset
from drcil.data.image_set import ImageShape
from drcil.errors import UserError
from drcil.learner import Learner
from drcil.methods import METHODS, Architecture
from drcil.methods.catalog import resolve_settings
from drcil.methods.recipe import load_profile, load_recipe
from drcil.models.model import Model
from drcil.runs.plan import complete
from drcil.settings import MemoryBudget, RunSettings
from drcil.stages import Schedule
from drcil.streams.memory import Memory, first_of_each_class
from drcil.streams.protocols import parse_stream
from drcil.streams.stream import make_stream

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
RESIDUAL = {
    "branch": "bn", "fusing": "sum", "conv_init": "kaiming", "branch_rows": "all", "branch_reduction": "joint",
    "branch_epsilon": 1e-7, "alpha": 0.2, "adjust_by": "class", "tro": 1.2,
}
"""What the pipelines say of a residual head and of logit adjustment."""
CONSTANTS: dict[str, dict[str, Any]] = {
    "replay": {},
    "finetune": {},
    "icarl": {"temperature": 2, "distillation": 1},
    "eeil": {"temperature": 2, "distillation": 1, "distillation_form": "binary", "noise": 0},
    "bic": {"temperature": 2, "held_share": 0.1, "corrections": "all"},
    "wa": {"temperature": 2, "weighting": "lambda", "distillation": 2, "nonnegative": False},
    "lucir": {"steadiness": 5, "margin": 0.5, "hardest": 2, "ranking": 1, "balancing": False},
    "podnet": {"proxies": 10, "nca": "program", "margin": 0.6, "spatial": 5, "flat": 1},
    "der": {"auxiliary": 1, "balancing": "align", "temperature": 5},
    "foster": {
        "temperature": 2, "distillation": 1, "auxiliary": 1, "boosting_betas": (0.96,), "compression_beta": 0.97,
    },
    "mdt": {"temperature": 2, "distillation": 1, **RESIDUAL},
    "mec": {"temperature": 2, "distillation": 1, "auxiliary": 1, **RESIDUAL},
    "maf": {
        "temperature": 2, "old_distillation": 4, "new_distillation": 1, "distillation_form": "cross-entropy",
        "adjust_distillation": True, "pod": 5, "student": "adapted", "untrained_past": True, "decaying_past": False,
        **RESIDUAL,
    },
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


LONG_TAILED = {"cifar100": (160, 0.1, 5e-4, (80, 120)), "imagenet100": (90, 0.1, 1e-4, (30, 60))}


@pytest.mark.parametrize("scenario", ["ordered", "shuffled", "lt50"])
@pytest.mark.parametrize("dataset", LONG_TAILED)
@pytest.mark.parametrize("method", ["replay", "finetune", "icarl", "eeil", "lucir", "podnet", "wa", "bic"])
def test_conventional_methods_have_the_schedule_of_long_tailed_streams(
    method: str, dataset: str, scenario: str
) -> None:
    stream = f"{dataset}-{'lt50-ordered' if scenario == 'lt50' else f'lt-{scenario}'}-b50-5"
    settings = resolve_settings(METHODS[method], data_kind(dataset), {}, stream=stream).schedules()
    for stage in ("first", "later"):
        own = settings[stage]
        assert (own.epochs, own.lr, own.weight_decay, own.milestones) == LONG_TAILED[dataset]
        assert own.curve == "steps"


@pytest.mark.parametrize("stream", ["cifar100-lt-shuffled-b50-5", "imagenet100-lt-ordered-b50-10"])
@pytest.mark.parametrize("method", ["maf", "mafdrc", "mdtdrc", "mecdrc", "foster", "der"])
def test_other_methods_keep_their_schedules_on_long_tailed_streams(method: str, stream: str) -> None:
    kind = data_kind(parse_stream(stream).dataset)
    settings = resolve_settings(METHODS[method], kind, {}, stream=stream)
    assert settings.schedules() == resolve_settings(METHODS[method], kind, {}).schedules()


def test_mafdrc_adjusts_by_class_and_keeps_maps_on_long_tailed_streams() -> None:
    settings = resolve_settings(METHODS["mafdrc"], "cifar", {}, stream="cifar100-lt-shuffled-b50-5").model_dump()
    assert (settings["remedies"], settings["adjust_by"], settings["pod"]) == (("la",), "class", 5.0)
    assert parse_stream("cifar100-lt-shuffled-b50-5").large_base(100), "so that POD is on"


def test_a_schedule_is_kept_by_what_it_has_none_for() -> None:
    tailed = resolve_settings(METHODS["icarl"], "digits", {}, stream="digits-lt-shuffled-b0-5")
    assert tailed == resolve_settings(METHODS["icarl"], "digits", {})


FALLING = (0.98, 0.975, 0.97, 0.965, 0.96, 0.955, 0.95, 0.945, 0.94)


@pytest.mark.parametrize(
    ("method", "stream", "expected"),
    [
        ("mafdrc", "imagenet100-b0-20", {"tro": 1.6}),
        ("maf+drc", "imagenet100-b0-20", {"tro": 1.6}),
        ("mafdrc-text", "imagenet100-b0-20", {"tro": 1.2}),
        ("mafdrc", "imagenet100-b0-10", {"tro": 1.2}),
        ("mafdrc", "cifar100-b0-20", {"tro": 1.2}),
        ("foster", "cifar100-b0-5", {"boosting_betas": (0.97, 0.96, 0.95, 0.94), "compression_beta": 0.97}),
        ("foster", "cifar100-b0-10", {"boosting_betas": FALLING, "compression_beta": 0.97}),
        ("foster", "cifar100-b0-20", {"boosting_betas": (0.96,), "compression_beta": 0.97}),
        ("foster", "cifar100-b50-5", {"boosting_betas": (0.94,), "compression_beta": 0.97}),
        ("foster", "cifar100-b50-10", {"boosting_betas": (0.94,), "compression_beta": 0.97}),
        ("foster", "cifar100-b50-25", {"boosting_betas": (0.95,), "compression_beta": 0.97}),
        ("foster", "cifar100-b50-50", {"boosting_betas": (0.95,), "compression_beta": 0.98, "batch_size": 64}),
        ("foster", "imagenet100-b50-5", {"boosting_betas": (0.97,), "compression_beta": 0.97, "batch_size": 256}),
        ("foster", "imagenet100-b50-10", {"boosting_betas": (0.96,), "compression_beta": 0.97}),
    ],
)
def test_streams_have_the_values_that_the_authors_programs_have_for_them(
    method: str, stream: str, expected: dict[str, Any]
) -> None:
    kind = data_kind(parse_stream(stream).dataset)
    settings = resolve_settings(METHODS[method], kind, {}, stream=stream)
    sizes = {schedule.batch_size for schedule in settings.schedules().values()}
    assert sizes == {expected.pop("batch_size", 128)}
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_settings_for_every_dataset_and_for_kinds_of_data_that_nobody_foresaw(method: str) -> None:
    for kind in {entry.spec.kind for entry in DATASETS.values()} | {"sounds"}:
        assert resolve_settings(METHODS[method], kind, {}).schedules()


@pytest.mark.parametrize("name", ["full", "short", "fast", "cpu"])
def test_every_profile_has_options_for_every_kind_of_data(name: str) -> None:
    for stream in [f"{entry.form}-b0-2" for entry in DATASETS.values()]:
        assert complete(RunSettings(method="replay", stream=stream, profile=name)).profile == name
    expected = {
        "full": {},
        "short": {"epochs_scale": 0.1},
        "fast": {"epochs_scale": 0.1, "augment": "basic", "schedule": "fast"},
        "cpu": {"epochs_scale": 0.08, "augment": "crop"},
    }
    assert load_profile(name, "sounds") == expected[name]


@pytest.mark.parametrize("kind", ["cifar", "imagenet", "digits", "sounds"])
@pytest.mark.parametrize("method", list(METHODS))
def test_the_fast_schedule_is_for_every_stage_that_trains_a_backbone(method: str, kind: str) -> None:
    """Epochs stay, and rates keep their proportion; what trains a classifier alone is left as it is."""
    spec = METHODS[method]
    recipe = load_recipe(spec.recipe, kind)
    usual, fast = (resolve_settings(spec, kind, {}, schedule=name).schedules() for name in (None, "fast"))
    assert fast.keys() == usual.keys()
    for stage, schedule in fast.items():
        assert schedule.epochs == usual[stage].epochs
        if "optimizer" in recipe[stage]:
            assert schedule == usual[stage]
        else:
            assert schedule.changes == "step"
            share = usual[stage].lr / usual["first"].lr
            assert schedule.lr / fast["first"].lr == pytest.approx(share)
        assert (schedule.warmup_share == 0.2) == (schedule.curve == "linear")
        assert (schedule.augment_growth == 0.6) == schedule.nesterov


@pytest.mark.parametrize("profile", ["short", "fast", "cpu"])
@pytest.mark.parametrize("method", [name for name, spec in METHODS.items() if spec.family == "transformer"])
def test_transformers_warm_up_in_every_profile(method: str, profile: str) -> None:
    spec = METHODS[method]
    for kind in ("cifar", "imagenet", "digits"):
        options = load_profile(profile, kind)
        usual = resolve_settings(spec, kind, {}).schedules()
        short = resolve_settings(spec, kind, {}, options["epochs_scale"], schedule=options.get("schedule")).schedules()
        warmed = [stage for stage, schedule in usual.items() if schedule.warmup]
        assert "first" in warmed
        assert all(short[stage].warmup >= 1 for stage in warmed), kind


def test_what_is_given_by_hand_goes_before_a_schedule() -> None:
    own = resolve_settings(METHODS["icarl"], "cifar", {"later.lr": 0.3}, 0.1, schedule="fast").schedules()
    assert own["later"].lr == 0.3
    assert (own["first"].epochs, own["first"].curve) == (20, "linear")
    assert resolve_settings(METHODS["icarl"], "cifar", {}, schedule="recipe") == resolve_settings(
        METHODS["icarl"], "cifar", {}
    )


def test_an_unknown_schedule_is_told() -> None:
    for ask in (
        lambda: resolve_settings(METHODS["icarl"], "cifar", {}, schedule="fest"),
        lambda: complete(RunSettings(method="icarl", stream="cifar100-b0-10", schedule="fest")),
        lambda: Learner("icarl", schedule="fest"),
    ):
        with pytest.raises(UserError, match="unknown schedule 'fest'; did you mean 'fast'"):
            ask()


LAYERS = """
[common]
weight = 1.0
common = true
[common.first]
epochs = 9
lr = 0.1
[default]
weight = 2.0
first.epochs = 8
[photographs]
like = "default"
first.lr = 0.5
[portraits]
like = "photographs"
weight = 3.0
[ink]
own = true
[streams.b0-20]
weight = 4.0
share = 0.4
[streams.digits-b0-20]
weight = 5.0
[streams."6/2"]
first.epochs = 2
[streams.lt]
weight = 6.0
share = 0.6
[streams.lt-ordered]
share = 0.7
first = {like = "long-tailed", lr = 0.3}
"""


@pytest.mark.parametrize(
    ("kind", "stream", "expected"),
    [
        ("sounds", None, {"weight": 2.0, "first": {"epochs": 8, "lr": 0.1}}),
        ("photographs", None, {"weight": 2.0, "first": {"epochs": 8, "lr": 0.5}}),
        ("portraits", None, {"weight": 3.0, "first": {"epochs": 8, "lr": 0.5}}),
        ("ink", None, {"weight": 1.0, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        ("ink", "digits-b0-5", {"weight": 1.0, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        ("ink", "letters-b0-20", {"weight": 4.0, "share": 0.4, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        ("ink", "digits-b0-20", {"weight": 5.0, "share": 0.4, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        ("ink", "folder:a-b-6/2", {"weight": 1.0, "own": True, "first": {"epochs": 2, "lr": 0.1}}),
        ("ink", "a-lt-shuffled-2/1", {"weight": 6.0, "share": 0.6, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        ("ink", "a-lt9-shuffled-b0-20", {"weight": 4.0, "share": 0.4, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
        (
            "photographs",
            "a-lt-ordered-2/1",
            {
                "weight": 6.0,
                "share": 0.7,
                "first": {
                    "epochs": 160,
                    "lr": 0.3,
                    "weight_decay": 5e-4,
                    "curve": "steps",
                    "milestones": [80, 120],
                },
            },
        ),
        ("ink", "digits-16/2", {"weight": 1.0, "own": True, "first": {"epochs": 9, "lr": 0.1}}),
    ],
)
def test_what_is_said_more_closely_goes_before(
    tmp_path: Path, kind: str, stream: str | None, expected: dict[str, Any]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(LAYERS)
    assert load_recipe(path, kind, stream) == {"common": True, **expected}


def test_a_method_is_set_up_for_the_stream_it_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "[common]\ntemperature = 2\ndistillation = 1\nfirst = {epochs = 1, lr = 0.1}\n"
        "later = {epochs = 1, lr = 0.1}\n[default]\n[streams.digits-b0-5]\ntemperature = 7\n"
    )
    spec = replace(METHODS["icarl"], recipe=path)
    monkeypatch.setattr(METHODS, "_entries", {**METHODS, "icarl": spec})
    assert resolve_settings(spec, "digits", {"temperature": 3}, stream="digits-b0-5").model_dump()["temperature"] == 3
    temperatures = {}
    for name in ("digits-b0-5", "digits-b0-2"):
        stream = make_stream(name)
        learner = Learner("icarl", device="cpu")
        learner.learn(replace(stream[0], new=first_of_each_class(stream[0].new, 2)))
        temperatures[name] = learner.method.settings.model_dump()["temperature"]
    assert temperatures == {"digits-b0-5": 7, "digits-b0-2": 2}


def test_a_recipe_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[common]\nweight = 1.0\n[common.first]\nepochs = 9\nlr = 0.1\n[digits.first]\nepochs = 3\n")
    assert load_recipe(path, "digits") == {"weight": 1.0, "first": {"epochs": 3, "lr": 0.1}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read .*own.toml: No such file"),
        ("[digits", "own.toml is not valid TOML"),
        ("[common]\n[cifar]", r"says nothing of data of kind 'digits' and has no \[default\]; it has: cifar"),
        ("[digits]\nlike = 'cifar'\n[ink]", r"\[digits\] cannot be like 'cifar'; it can be like: ink"),
        ("[digits]\nlike = 'ink'\n[ink]\nlike = 'digits'", r"\[ink\] cannot be like 'digits'"),
        ("weight = 2\n[digits]", "'weight' stands outside of all tables; put it into"),
        ("[digits]\n[backbones.transformers]", "unknown family of backbones .* 'transformers'; did you mean 'trans"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=told):
        load_recipe(path, "digits")


def test_a_recipe_names_an_augmentation_that_the_user_may_override(tmp_path: Path) -> None:
    """By hand before the recipe, the recipe before the data."""
    text = files("drcil.recipes").joinpath("replay.toml").read_text()
    recipe = tmp_path / "own.toml"
    recipe.write_text(f'{text}\n[streams.digits-b0-5]\naugment = "none"\n')
    spec = replace(METHODS["replay"], recipe=recipe)
    named = resolve_settings(spec, "digits", {}, stream="digits-b0-5")
    other = resolve_settings(spec, "digits", {}, stream="digits-b0-2")
    assert (named.augment, other.augment) == ("none", None)
    digits = load_dataset("digits").spec
    for settings, given, expected in ((named, None, "none"), (named, "crop", "crop"), (other, None, digits.augment)):
        method = spec.build(settings, Architecture("resnet-digits", channels_in=1, image_size=8))
        shape = ImageShape(channels=1, size=8, in_memory=True)
        assert Model("replay", method, digits, shape, Memory(MemoryBudget()), given).augmentation == expected
