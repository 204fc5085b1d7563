"""The commands that pages of runs and suites show: given again, they make the same run or suite, for every option."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from drcil.cli import app, main
from drcil.experiments import runner
from drcil.nets.backbone import BACKBONES
from drcil.registry import named_plugins
from drcil.runs.plan import command_of, complete
from drcil.settings import RunSettings

VERBS: Any = typer.main.get_command(app)
VALUES = {
    "seed": "3",
    "seeds": "2",
    "order_seed": "7",
    "memory": "3/class",
    "backbone": "resnet32",
    "weights": "weights.pth",
    "freeze": "backbone",
    "head": "rc",
    "remedy": "la",
    "data": "/data",
    "tasks": "2",
    "image_size": "6",
    "epochs_scale": "0.25",
    "epochs": "2",
    "lr": "0.05",
    "batch_size": "16",
    "deterministic": "",
    "schedule": "fast",
    "profile": "cpu",
    "augment": "crop",
    "validation": "0.1",
    "settings": "first.epochs=3",
    "rows": "maf, first.epochs=3",
    "columns": "digits",
    "device": "cpu",
    "precision": "bf16-mixed",
    "threads": "1",
    "workers": "1",
    "cache": "1MB",
    "compile": "",
    "devices": "2",
    "accumulate": "2",
    "sync_batchnorm": "",
    "timeout": "60",
    "jobs": "3",
    "backend": "ray",
    "ray_address": "host:1",
    "cpus_per_run": "2",
    "gpus_per_run": "0.5",
    "out": "somewhere",
    "eval_every": "2",
    "metric": "last",
    "loggers": "csv",
    "reuse": ".",
    "plugin": "mine.py",
}
"""A value of every option that is not its default; of a switch, nothing."""
PRINTING = {"json", "quiet", "dry_run"}
WITHOUT = {
    "config": "its settings are printed one by one",
    "pretrained": "it would need the network; what it makes of the run is --weights",
    **dict.fromkeys(PRINTING, "it says what is printed"),
}
HOW_COMPUTED = {"data": True, "threads": True, "loggers": True} | {
    "engine": {"device", "workers", "cache", "eval_every", "devices", "timeout"}
}
"""Settings on which the result does not depend."""
TOGETHER = {
    "ray_address": ["--engine", "ray"],
    "cpus_per_run": ["--engine", "ray"],
    "gpus_per_run": ["--engine", "ray"],
    "freeze": ["--weights", "weights.pth"],
}
"""What an option needs besides it."""


def cases(verb: str) -> Iterator[tuple[str, str]]:
    """Every option of a verb, as typer knows it, by its name and as it is written; a switch that has two ways, both."""
    for param in VERBS.commands[verb].params:
        if param.param_type_name == "option" and param.name not in {"help", *WITHOUT}:
            for option in (*param.opts, *param.secondary_opts):
                yield param.name, option


def words(name: str, option: str) -> list[str]:
    """The option with a value; one that nobody gave a value here is missing in ``VALUES``."""
    return [option, *([VALUES[name]] if VALUES[name] else []), *TOGETHER.get(name, [])]


class Stop(Exception):
    """Nothing is trained."""


@pytest.fixture(autouse=True)
def _room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a plugin, weights and a suite; nothing is named or set from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRCIL_DATA", raising=False)
    for name in ("_named", "_codes"):
        monkeypatch.setattr(f"drcil.registry.{name}", {})
    for name in ("_loaded", "_missing"):
        monkeypatch.setattr(f"drcil.registry.{name}", set())
    (tmp_path / "mine.py").touch()
    torch.save(BACKBONES["resnet-digits"](1).state_dict(), tmp_path / "weights.pth")
    suite = 'methods = ["maf"]\nstreams = ["digits-b0-5"]\ngrid = {"first.epochs" = [3, 4]}\n'
    (tmp_path / "own.toml").write_text(suite)


def settings_of(verb: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> RunSettings:
    """The settings of the run, or of the first, that a command makes."""
    found: list[RunSettings] = []

    def complete_and_stop(asked: RunSettings) -> RunSettings:
        found.append(complete(asked))
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr("drcil.runs.plan.complete", complete_and_stop)
        patched.setattr(runner, "complete", complete_and_stop)
        with pytest.raises(Stop):
            main([verb, *arguments])
    return found[0]


@pytest.mark.parametrize(
    ("verb", "name", "option"), [(verb, *case) for verb in ("run", "compare") for case in cases(verb)]
)
def test_a_run_is_made_again_by_its_command(verb: str, name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if VALUES[name] == "ray" or "ray" in TOGETHER.get(name, ()):
        pytest.importorskip("ray")
    own = settings_of(verb, ["maf", "digits-b0-5", *words(name, option)], monkeypatch)
    own = own.model_copy(update={"plugins": named_plugins()})  # As when a run begins.
    monkeypatch.setattr("drcil.registry._named", {})
    drcil, run, *printed = shlex.split(command_of(own))
    assert (drcil, run) == ("drcil", "run")
    again = settings_of("run", printed, monkeypatch).model_copy(update={"plugins": named_plugins()})
    assert again.model_dump(exclude=HOW_COMPUTED) == own.model_dump(exclude=HOW_COMPUTED)
    assert again.identity() == own.identity()


def command_of_suite(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that the page of a suite shows, of which nothing is run; all but its first two words."""
    commands: list[str] = []

    def stop(*arguments: Any) -> None:
        commands.append(arguments[-1])
        raise Stop

    monkeypatch.setattr(runner, "run_experiment", stop)
    with pytest.raises(Stop):
        main(["reproduce", *arguments])
    drcil, reproduce, *printed = shlex.split(commands[0])
    assert (drcil, reproduce) == ("drcil", "reproduce")
    return printed


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``reproduce`` would be called with, and the plugins that are named by then."""
    monkeypatch.setattr("drcil.registry._named", {})
    values: dict[str, Any] = VERBS.commands["reproduce"].make_context("reproduce", [*arguments]).params
    return {name: value for name, value in values.items() if name not in PRINTING} | {"plugin": named_plugins()}


@pytest.mark.parametrize(("name", "option"), [*cases("reproduce")])
def test_a_suite_is_made_again_by_its_command(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if VALUES[name] == "ray" or "ray" in TOGETHER.get(name, ()):
        pytest.importorskip("ray")
    given = ["own.toml", *words(name, option)]
    printed = command_of_suite(given, monkeypatch)
    assert parsed(printed, monkeypatch) == parsed(given, monkeypatch)


def test_a_suite_names_plugins_and_data_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRCIL_DATA", "/data")
    monkeypatch.setattr("drcil.registry._in_environment", lambda: (str(tmp_path / "mine.py"),))
    printed = command_of_suite(["own.toml", "--json"], monkeypatch)
    assert printed == ["own.toml", "--data", "/data", "--plugin", str(tmp_path / "mine.py")]
