"""Settings of runs: epochs, rates and batches of all stages, and settings read back from a file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from drcil.cli import main
from drcil.errors import UserError
from drcil.experiments.jobs import current_method_settings
from drcil.process import configure
from drcil.runs.plan import complete
from drcil.settings import CONFIG, RunSettings

TINY = ["--epochs", "1", "--tasks", "1", "--threads", "1", "--quiet"]


def stages(method: str, stream: str = "cifar100-b0-10", **options: Any) -> dict[str, dict[str, Any]]:
    """The resolved schedules of a run by stage."""
    settings = complete(RunSettings.parse({"method": method, "stream": stream, **options}))
    resolved = current_method_settings(settings)
    return {name: value for name, value in resolved.items() if isinstance(value, dict) and "epochs" in value}


def test_epochs_rate_and_batch_size_hold_for_all_stages_that_train_a_backbone() -> None:
    usual, changed = stages("maf"), stages("maf", epochs=20, lr=0.2, batch_size=64)
    for name, stage in changed.items():
        if stage != usual[name]:
            assert (stage["epochs"], stage["lr"], stage["batch_size"]) == (20, 0.2, 64)
    assert {name for name in usual if changed[name] != usual[name]} >= {"first"}


def test_milestones_warm_up_and_final_rate_keep_their_proportion() -> None:
    usual, short = stages("icarl")["first"], stages("icarl", epochs=10, lr=stages("icarl")["first"]["lr"] / 2)["first"]
    ratio = 10 / usual["epochs"]
    assert short["milestones"] == [max(1, round(milestone * ratio)) for milestone in usual["milestones"]]
    assert short["lr_end"] == pytest.approx(usual["lr_end"] / 2)
    assert short["warmup_lr"] == pytest.approx(usual["warmup_lr"] / 2)


def test_a_setting_of_one_stage_overrides_the_option_for_all_and_a_scale_does_not() -> None:
    changed = stages("icarl", epochs=20, epochs_scale=0.1, settings={"later.epochs": 50, "later.lr": 0.3}, lr=0.1)
    assert changed["first"]["epochs"] == 20 and changed["first"]["lr"] == 0.1
    assert changed["later"]["epochs"] == 5 and changed["later"]["lr"] == 0.3


def test_options_of_stages_are_part_of_the_identity_only_where_they_are_used() -> None:
    values = {"method": "icarl", "stream": "digits-b0-5"}
    plain, short = (complete(RunSettings.parse({**values, **more})) for more in ({}, {"epochs": 3}))
    assert short.identity() == {**plain.identity(), "epochs": 3}
    assert plain.has_full_budget and not short.has_full_budget


def test_a_method_without_such_stages_refuses_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcil.methods.catalog.backbone_stages", lambda *recipe: [])
    with pytest.raises(UserError, match="'icarl' has no stage that trains a backbone, so 'epochs' has no effect"):
        stages("icarl", epochs=3)


def test_an_unknown_setting_is_answered_with_the_three_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'later.epochs'\? Nearest: later.epochs, [^,]+, [^,]+$"):
        stages("icarl", settings={"later.epoch": 3})


def test_the_settings_of_a_run_are_read_back_and_options_override_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = ["icarl:classifier", "digits-b0-5", "--memory", "20", "--workers", "0", "--set", "later.lr=0.05"]
    assert main(["run", *first, *TINY, "--out", "a"]) == 0
    again = ["--config", "a/config.toml", "--seed", "3", "--eval-every", "1", "--set", "temperature=3"]
    assert main(["run", *again, "--out", "b", "--quiet"]) == 0
    a, b = (tomllib.loads((tmp_path / name / CONFIG).read_text()) for name in ("a", "b"))
    assert b.pop("settings") == {"later.lr": 0.05, "temperature": 3} and a.pop("settings") == {"later.lr": 0.05}
    engine = {**a.pop("engine"), "eval_every": 1}
    assert b.pop("engine") == engine and b == {**a, "seed": 3} and b["readout"] == "classifier"
    assert main(["run", "replay", "--config", "a", "--out", "c", "--quiet"]) == 0
    c = RunSettings.parse(tomllib.loads((tmp_path / "c" / CONFIG).read_text()))
    assert (c.label, c.stream, c.memory, c.epochs) == ("replay", "digits-b0-5", "20", 1), "of a run directory, too"
    (tmp_path / "other.toml").write_text("seed = 3\n")
    capsys.readouterr()
    assert main(["run", "--config", "other.toml"]) == 2
    assert "other.toml is not the config.toml of a run" in capsys.readouterr().err


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_kernels_are_a_choice(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("drcil.process.make_repeatable", lambda: calls.append(True))
    configure(deterministic=deterministic)
    assert calls == [True] * deterministic
