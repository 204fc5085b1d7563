"""Run directories: made, found and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drcil.errors import UserError
from drcil.runs.run import Run
from drcil.runs.settings import RunSettings, make_settings

SETTINGS = make_settings(
    method="replay",
    stream="digits-b0-5",
    tasks=1,
    epochs_scale=0.02,
    settings={"first.lr": 0.01},
    engine={"workers": 0},
)


def test_settings_survive_the_disk(tmp_path: Path) -> None:
    Run.create(SETTINGS, tmp_path / "run")
    assert Run.open(tmp_path / "run").settings == SETTINGS


def test_without_a_place_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = [Run.create(SETTINGS).directory.as_posix() for _ in range(3)]
    name = "runs/replay-digits-b0-5-seed0"
    assert places == [name, f"{name}-2", f"{name}-3"]


def test_nothing_that_is_there_is_touched(tmp_path: Path) -> None:
    Run.create(SETTINGS, tmp_path / "run")
    with pytest.raises(UserError, match=r"run already holds a run; 'drcil resume .*run' goes on with it"):
        Run.create(SETTINGS, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("")
    for place in ("full", "full/letter"):
        with pytest.raises(UserError, match="exists and is not an empty directory; choose another --out"):
            Run.create(SETTINGS, tmp_path / place)
    with pytest.raises(UserError, match=r"cannot write .*config.toml: Not a directory"):
        Run.create(SETTINGS, tmp_path / "full" / "letter" / "run")


def test_a_place_where_making_a_run_was_killed_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.toml.123.tmp").write_text("half")
    assert Run.create(SETTINGS, tmp_path / "run").settings == SETTINGS


def test_what_is_not_a_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run: it has no config.toml"):
        Run.open(tmp_path)
    config = tmp_path / "config.toml"
    for text, sentence in (
        ("format = 9", "has run format 9; this version of drcil reads format 1"),
        ("format =", "config.toml cannot be read"),
        ('format = 1\nmethod = "replay"', "an option of the run is not usable: 'stream' is missing"),
    ):
        config.write_text(text)
        with pytest.raises(UserError, match=sentence):
            Run.open(tmp_path)


def test_a_run_without_a_finished_task_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no result yet: its first task is not finished"):
        Run.create(SETTINGS, tmp_path / "run").result()


def test_going_again_on_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = Run.create(SETTINGS, tmp_path / "run")
    first = run.go()
    files = {file: file.read_bytes() for file in (tmp_path / "run" / "tasks").rglob("*") if file.is_file()}
    assert Run.open(tmp_path / "run").go() == first == run.result()
    assert {file: file.read_bytes() for file in files} == files
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["Started", "StageStarted", "EpochDone", "StageDone", "TaskDone", "Started"]


def test_tasks_are_counted_beyond_ninety_nine(tmp_path: Path) -> None:
    for name in ("01", "02", "10", "99", "100", "101", ".102.tmp"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
    names = [task.name for task in Run(tmp_path, RunSettings(method="replay", stream="x")).finished_tasks()]
    assert names == ["01", "02", "10", "99", "100", "101"]
