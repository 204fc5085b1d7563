"""Settings that are accepted act: each is read in training, and those that cannot act are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drcil import Learner
from drcil.cli import main
from drcil.errors import UserError
from drcil.methods import METHODS
from drcil.methods.catalog import resolve_settings
from drcil.methods.method import Settings
from drcil.runs.execution import create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.stages import Schedule
from drcil.streams.memory import first_of_each_class
from drcil.streams.stream import make_stream

COMBINED = ("maf+cb", "mdt+la+bft", "mec+focal", "mecdrc+la", "maf+rc", "lucir+two-stage")
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mafdrc", {"branch": "conv"}),
    ("der", {"balancing": "retrain"}),
    ("podnet", {"nca": "published", "finetunes": False}),
    ("lucir", {"balancing": True}),
    ("wa", {"weighting": "sum"}),
    ("eeil", {"noise": 0.1}),
    ("ranpac", {"ridge": 1.0}),
)
"""Methods under settings that let others act, or keep them from acting."""
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {}) for name in (*METHODS, *COMBINED) if not METHODS[name].alias_of
] + list(OPTIONS)


def noting(settings: Settings, read: set[str]) -> Settings:
    """The same settings, which note the fields that are read."""
    kind = type(settings)

    class Noting(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in kind.model_fields:
                read.add(name)
            return super().__getattribute__(name)

        def schedules(self) -> dict[str, Schedule]:
            return Noted(super().schedules())

    class Noted(dict[str, Schedule]):
        def __getitem__(self, name: str) -> Schedule:
            read.add(name)
            return super().__getitem__(name)

    noted: Settings = Noting.model_construct(**dict(settings))
    return noted


@pytest.mark.filterwarnings("ignore:the backbone is random")
@pytest.mark.parametrize("stream", ["digits-b0-5", "digits-6/2"])
@pytest.mark.parametrize(("method", "settings"), CASES, ids=lambda value: str(value))
def test_settings_that_are_accepted_are_those_that_are_read(
    method: str, settings: dict[str, Any], stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On streams without and with a large base; what cannot act is not looked at."""
    read: set[str] = set()
    resolved: Callable[..., Settings] = resolve_settings
    monkeypatch.setattr("drcil.models.model.resolve_settings", lambda *own: noting(resolved(*own), read))
    memory = None if METHODS[method].build.memory else "3/class"
    learner = Learner(method, epochs_scale=0.01, memory=memory, settings=settings, device="cpu")
    tasks = make_stream(stream)[:3]
    for task in tasks:
        learner.learn(replace(task, new=first_of_each_class(task.new, 8)))
    seen = set(read)
    idle = learner.method.idle_settings(tasks[0].large_base)
    fields = set(METHODS[method].build.Settings.model_fields)
    assert idle.keys() <= fields
    assert fields - seen == idle.keys()


@pytest.mark.parametrize(
    ("method", "setting", "needs"),
    [
        ("maf", "branch=conv", "a residual head, such as 'drc'"),
        ("maf", "tro=9", "the remedy 'la'"),
        ("maf", "conv_init=identity", "a residual head, such as 'drc'"),
        ("maf", "decaying_past=true", "a residual head, such as 'drc'"),
        ("maf", "finetuning.lr=1", "the remedy 'bft'"),
        ("mafdrc", "conv_init=identity", "branch=conv"),
        ("mafdrc", "pod=7", "a stream with a large first task"),
    ],
)
def test_a_setting_that_cannot_act_is_refused_in_a_sentence(
    method: str, setting: str, needs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", method, "digits-b0-5", "--set", setting, "--out", str(tmp_path / "r")]) == 2
    key = setting.partition("=")[0]
    said = f"setting '{key}' has no effect on this run of '{method}': it needs {needs}; leave it out"
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "r").exists()


def test_a_setting_acts_where_its_head_remedy_or_stream_is(tmp_path: Path) -> None:
    runs: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("maf", "digits-b0-5", {"head": "drc", "branch": "conv", "conv_init": "identity", "decaying_past": True}),
        ("maf+la", "digits-b0-5", {"tro": 9.0}),
        ("mafdrc", "digits-6/2", {"pod": 7.0}),
        # As in the recipe: it is the plain run.
        ("maf", "digits-b0-5", {"tro": 1.2, "branch": "bn", "finetuning.epochs": 20}),
    )
    for number, (method, stream, settings) in enumerate(runs):
        create_run(complete(RunSettings(method=method, stream=stream, settings=settings)), tmp_path / str(number))


def test_a_learner_refuses_it_before_it_learns() -> None:
    learner = Learner("maf", settings={"tro": 9.0}, epochs_scale=0.01)
    with pytest.raises(UserError, match="'tro' has no effect on this run of 'maf': it needs the remedy 'la'"):
        learner.learn(make_stream("digits-b0-5")[0])


def test_in_a_comparison_it_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A setting of one method is given to all: those that it cannot act on run all the same."""
    monkeypatch.chdir(tmp_path)
    options = ["--epochs-scale", "0.01", "--tasks", "2", "--threads", "1", "--set", "tro=2", "--out", "c"]
    assert main(["compare", "maf", "maf+la", "digits-b0-5", *options]) == 0
    said = " ".join("".join(capfd.readouterr()).split())
    assert said.count("has no effect on this run of 'maf':") == 1
    assert "has no effect on this run of 'maf+la'" not in said
