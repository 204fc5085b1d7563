"""Recipes, names and methods for transformers: what they are trained with, what they refuse, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import drcil
from drcil.cli import main
from drcil.data.dataset import DATASETS
from drcil.errors import UserError
from drcil.experiments.jobs import current_method_settings
from drcil.learner import Learner
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.recipe import load_recipe
from drcil.runs.execution import create_run
from drcil.runs.plan import complete, fresh_model, load_stream, plan_run
from drcil.settings import EngineSettings, RunSettings
from drcil.stages import Schedule

pytestmark = pytest.mark.numerical

HEAD_ALONE = {("bic", "bias"), ("der", "retraining"), ("lucir", "finetuning")} | {
    (pipeline, "finetuning") for pipeline in ("maf", "mdt", "mec")
}
"""Stages that train a classifier or a correction, whatever is behind it, by recipe."""
DYTOX: dict[str, Any] = {
    "lr": 5e-4 * 128 / 512,
    "optimizer": "adamw",
    "weight_decay": 1e-6,
    "decay": "weights",
    "warmup": 5,
    "warmup_lr": 1e-6,
    "lr_end": 1e-5,
}


@pytest.mark.parametrize("method", [name for name, spec in METHODS.items() if spec.build.family is None])
@pytest.mark.parametrize("kind", ["cifar", "imagenet", "digits"])
def test_no_stage_trains_a_transformer_as_a_convolutional_net(method: str, kind: str) -> None:
    """The epochs are each method's own; only stages that train no backbone keep their optimiser."""
    spec = METHODS[method]
    usual = resolve_settings(spec, kind, {}, backbone="resnet32").schedules()
    given = resolve_settings(spec, kind, {}, backbone="convit").schedules()
    assert given.keys() == usual.keys()
    for stage, schedule in given.items():
        assert schedule.epochs == usual[stage].epochs
        assert schedule.batch_size == usual[stage].batch_size
        if (spec.recipe, stage) in HEAD_ALONE:
            assert schedule == usual[stage]
        else:
            assert (schedule.optimizer, schedule.curve, schedule.decay) == ("adamw", "cosine", "weights")
            share = usual[stage].lr / usual["first"].lr
            assert schedule.lr / given["first"].lr == pytest.approx(share), "a fine-tuning stage stays a gentle one"


@pytest.mark.parametrize("stream", [None, "cifar100-b0-10"])
@pytest.mark.parametrize("method", ["maf", "mafdrc", "maf-vit", "mafdrc-vit"])
def test_maf_trains_a_transformer_with_the_numbers_of_dytox_over_its_own_epochs(
    method: str, stream: str | None
) -> None:
    settings = resolve_settings(METHODS[method], "cifar", {}, stream=stream, backbone="convit")
    for stage, epochs in (("first", 200), ("adaptation", 70), ("fusion", 130)):
        assert settings.schedules()[stage] == Schedule(epochs=epochs, **DYTOX)
    own = settings.model_dump()
    assert (own["pod"], own["untrained_past"]) == (0, False)
    plain = resolve_settings(METHODS[method.removesuffix("-vit")], "cifar", {}, stream=stream).model_dump()
    assert (plain["pod"], plain["untrained_past"]) == (5, True)
    changed = {"pod", "untrained_past", "first", "adaptation", "fusion"}
    assert {key for key in own if own[key] != plain[key]} == changed


def test_a_long_tail_does_not_bring_back_the_rates_of_convolutional_nets() -> None:
    tailed = resolve_settings(METHODS["icarl"], "cifar", {}, stream="cifar100-lt-ordered-b50-5", backbone="convit")
    assert tailed.schedules()["first"] == Schedule(epochs=160, **DYTOX)


def test_what_is_given_by_hand_goes_before_the_family() -> None:
    settings = resolve_settings(METHODS["replay"], "cifar", {"first.lr": 0.02}, backbone="convit").schedules()
    assert settings["first"] == Schedule(epochs=200, **DYTOX | {"lr": 0.02})


def test_a_recipe_may_say_itself_how_a_family_is_trained(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "[common]\nweight = 1\nfirst = {epochs = 9, lr = 0.1}\nlast = {epochs = 3, lr = 0.2, optimizer = 'sgd'}\n"
        "[default]\n[streams.b0-5]\nweight = 2\nshare = 1\n[backbones.transformer]\nweight = 3\nfirst.clip = 1\n"
    )
    assert load_recipe(path, "cifar", "digits-b0-5")["weight"] == 2
    given = load_recipe(path, "cifar", "digits-b0-5", "transformer")
    assert (given["weight"], given["share"]) == (3, 1)
    assert given["last"] == {"epochs": 3, "lr": 0.2, "optimizer": "sgd"}
    assert Schedule.model_validate(given["first"]) == Schedule(epochs=9, clip=1, **DYTOX)


@pytest.mark.parametrize("method", ["maf-vit", "mafdrc-vit"])
def test_a_name_that_needs_a_transformer_takes_that_of_the_data(method: str) -> None:
    spec = METHODS[method]
    for name, entry in DATASETS.items():
        usual = "convit-digits" if entry.spec.kind == "digits" else "convit"
        if drcil.__name__ not in (DATASETS.origin(name) or drcil.__name__):
            continue
        assert spec.backbone(entry.spec) == usual
    small = complete(RunSettings(method=method, stream="cifar100-b0-5", profile="cpu"))
    assert (small.backbone, small.image_size) == ("convit-small", 16)
    assert complete(RunSettings(method="mafdrc", stream="cifar100-b0-5", profile="cpu")).backbone == "resnet20"
    assert complete(RunSettings(method=method, stream="digits-b0-5", profile="cpu")).backbone is None
    asked = complete(RunSettings(method=method, stream="cifar100-b0-5", profile="cpu", backbone="convit"))
    assert asked.backbone == "convit"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["maf-vit", "digits-b0-5", "--backbone", "resnet32"],
            "'maf-vit' needs a transformer backbone, but 'resnet32' is a convolutional one; choose another, such as "
            "'convit-digits', or omit it",
        ),
        (
            ["podnet", "digits-b0-5", "--backbone", "convit-digits"],
            "POD-spatial, which 'spatial' weighs, compares stage maps, but backbone 'convit-digits' gives none; set "
            "spatial=0, or choose another backbone",
        ),
        (
            ["replay", "digits-b0-5", "--backbone", "convit-digits", "--image-size", "7"],
            "'convit-digits' cuts images into patches of 2 pixels, so it cannot see images of 7: give a multiple of 2",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence_before_anything_is_begun(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in " ".join(error.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("method", "backbone"), [("maf-vit", None), ("mafdrc", "convit-digits"), ("mafdrc", None)])
def test_a_comparison_knows_the_settings_that_a_run_begins_with(method: str, backbone: str | None) -> None:
    own = complete(RunSettings(method=method, stream="digits-b0-5", backbone=backbone))
    assert current_method_settings(own) == fresh_model(own, load_stream(own)).method.settings.model_dump(mode="json")


def test_the_wrong_family_is_told_to_programs_too() -> None:
    stream = drcil.stream("digits-b0-5")
    with pytest.raises(UserError, match="'mafdrc-vit' needs a transformer backbone, but 'resnet-digits' is a convol"):
        Learner("mafdrc-vit", backbone="resnet-digits", device="cpu").learn(stream[0])


ANY = [name for name, spec in METHODS.items() if spec.family is None and spec.alias_of is None]


@pytest.mark.parametrize("method", ANY)
def test_any_method_takes_a_transformer_also_after_a_large_base(method: str) -> None:
    """MAF without POD, PODNet if told so, cosine classifiers without a variant, expansion with a second backbone."""
    options: dict[str, Any] = {"backbone": "convit-digits", "image_size": 4, "epochs_scale": 0.01}
    settings = {"spatial": 0} if method == "podnet" else {}
    plan = plan_run(complete(RunSettings(method=method, stream="digits-4/2", tasks=2, settings=settings, **options)))
    later = len(resolve_settings(METHODS[method], "digits", {}).schedules()) > 1
    assert [bool(task) for task in plan.work] == [True, later], "of which nothing would be known after an exception"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lucir", "der"])
def test_methods_learn_with_a_transformer(method: str) -> None:
    stream = drcil.stream("digits-4/2")
    learner = Learner(method, backbone="convit-digits", memory="40", epochs_scale=0.2, device="cpu")
    for task in stream[:2]:
        learner.learn(task)
    # Seeds 0 to 4: lucir 73 ± 2.1, der 55.6 ± 5.6.
    assert learner.evaluate(stream[1].test) > 35, "of six classes; 33 is to know the newest task alone"


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", ["maf-vit", "mafdrc-vit"])
def test_they_learn_cifar100(method: str, data_dir: Path, tmp_path: Path) -> None:
    """By the CPU profile, for a hundredth of the epochs: a few times what guessing gives."""
    settings = complete(
        RunSettings(
            method=method,
            stream="cifar100-b0-10",
            tasks=2,
            profile="cpu",
            epochs_scale=0.02,
            data=str(data_dir),
            engine=EngineSettings(device="cpu"),
        )
    )
    result = create_run(settings, tmp_path / "run").train()
    assert result.settings["backbone"] == "convit-small"
    assert result.figure("parameters") == 564_300 + 96 * 20 + 20 + (4 * 96 if method == "mafdrc-vit" else 0)
    curve = result.figure("curve")
    assert curve[0] > 2.5 * 100 / 10
    assert curve[1] > 2 * 100 / 20
