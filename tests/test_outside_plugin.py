"""A file outside the package, through the command line in fresh processes: all that its names can be used for."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import drcil
from drcil import registry
from drcil.data.dataset import load_dataset
from drcil.errors import UserError
from drcil.experiments.jobs import Datasets, KnownRuns
from drcil.heads import LinearHead
from drcil.heads.head import HEADS
from drcil.nets.backbone import BACKBONES
from drcil.runs.execution import check_unchanged, create_run
from drcil.runs.plan import complete, load_stream, plan_run
from drcil.settings import RunSettings
from support.documents import SUPPORT
from support.model_edits import edit_state
from support.plugins import METHOD, install
from support.processes import wait_for_text

OUTSIDE = SUPPORT / "plugin"
STREAM = "bars-b0-3"
TINY = (STREAM, "--tasks", "2", "--threads", "1", "--log", "csv", "--quiet")
SHORT, BRIEF = ("--epochs-scale", "0.3"), ("--epochs-scale", "0.05")
EPOCHS = {"1 first": 18, "2 later": 12}
"""Of a short run, by task and stage."""


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DRCIL_")}
    words = [sys.executable, "-P", "-m", "drcil.cli", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, env={**own, **environment}, capture_output=True, text=True, check=False)


def said(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    done = command(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complaint(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """The one line that a command refuses with."""
    done = command(*arguments, cwd=cwd, **environment)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def plugins_of(run: Path) -> list[str]:
    found: list[str] = tomllib.loads((run / "config.toml").read_text())["plugins"]
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the plugin, and a run that uses everything in it."""
    shop = tmp_path_factory.mktemp("shop")
    for file in OUTSIDE.glob("my_plugin.*"):
        shutil.copy(file, shop)
    options = (*TINY, *SHORT, "--log", "notes", "--out", "r", "--plugin", "my_plugin.py")
    said("run", "smooth-replay", *options, cwd=shop)
    return shop


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


@pytest.mark.slow
def test_a_run_uses_it_and_keeps_its_name(shop: Path) -> None:
    found = result(shop / "r")
    assert found["complete"] and found["settings"]["backbone"] == "small-cnn" and found["settings"]["augment"] == "roll"
    assert found["readouts"]["classifier"]["worst_task"] == min(found["matrix"][-1])
    assert found["last"] > 30, "chance is 25; seeds 0 to 4: 77 ± 15"
    assert plugins_of(shop / "r") == [str(shop / "my_plugin.py")]
    notes = (shop / "r" / "notes.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in notes] == [
        f"task {stage}, epoch {epoch + 1}" for stage, epochs in EPOCHS.items() for epoch in range(epochs)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["r", "r/tasks/02"])
def test_a_run_and_a_model_are_evaluated_with_it(what: str, shop: Path) -> None:
    words = ("evaluate", what, STREAM)
    found = json.loads(said(*words, "--json", "--plugin", "my_plugin.py", cwd=shop))
    assert found["accuracy"] == pytest.approx(result(shop / "r")["last"], abs=0.01)
    assert "needs the plugin" in complaint(*words, cwd=shop)


@pytest.mark.slow
def test_a_model_names_the_plugin_that_is_missing(shop: Path, tmp_path: Path) -> None:
    model = shutil.copytree(shop / "r" / "tasks" / "02", tmp_path / "model")
    state = json.loads((model / "state.json").read_text())
    assert state["plugins"] == [str(shop / "my_plugin.py")]
    edit_state(model, lambda state: state.update(plugins=["absent"], plugin_digests={"absent": "0"}))
    with pytest.raises(UserError, match="model needs the plugin 'absent'; install it"):
        drcil.load(model)


def test_a_model_needs_the_plugins_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnHead(LinearHead):
        pass

    monkeypatch.setattr(HEADS, "_entries", dict(HEADS))
    HEADS.register("own")(OwnHead)
    for name, head, plugins in (("plain", "linear", []), ("own", "own", [__name__])):
        learner = drcil.Learner("mdt", epochs_scale=0.02, settings={"head": head})
        learner.learn(drcil.stream("digits-b0-5")[0])
        learner.save(tmp_path / name)
        assert json.loads((tmp_path / name / "state.json").read_text())["plugins"] == plugins


@pytest.mark.slow
def test_a_comparison_gives_it_to_its_processes_and_finds_finished_runs(shop: Path, tmp_path: Path) -> None:
    words = ("compare", "smooth-replay", "replay", *TINY[:-1], *BRIEF)
    first = said(*words, "--plugin", shop / "my_plugin.py", cwd=tmp_path)
    assert first.count("starts in") == 2 and first.count(": done") == 2
    moved = tmp_path / "elsewhere"
    shutil.copytree(OUTSIDE, moved)
    again = said(*words, cwd=tmp_path, DRCIL_PLUGINS=str(moved / "my_plugin.py"))
    assert again.count("reused from") == 2, "the place of a plugin makes no other run"


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_like_one_that_was_not(shop: Path, tmp_path: Path) -> None:
    options = ["smooth-replay", *TINY, *SHORT, "--log", "notes", "--out", "killed"]
    options += ["--plugin", str(shop / "my_plugin.py")]
    killed, whole = tmp_path / "killed", shop / "r"
    running = subprocess.Popen([sys.executable, "-m", "drcil.cli", "run", *options], cwd=tmp_path)
    wait_for_text(killed / "events.jsonl", '"task": 2, "stage": "later", "epoch": 2', running)
    running.kill()
    assert running.wait() == -signal.SIGKILL, "it was to be killed within task 2"
    assert f"needs the plugin '{shop / 'my_plugin.py'}'" in complaint("resume", "killed", cwd=tmp_path)
    said("resume", "killed", "--quiet", "--plugin", shop / "my_plugin.py", cwd=tmp_path)
    assert result(killed)["matrix"] == result(whole)["matrix"] and result(killed)["complete"]
    for table in ("epochs.csv", "tasks.csv"):
        assert without_clocks(killed / table) == without_clocks(whole / table)
    assert (killed / "notes.txt").read_text() == (whole / "notes.txt").read_text()
    stages = [f"{row['task']} {row['stage']}" for row in without_clocks(whole / "epochs.csv")]
    assert {stage: stages.count(stage) for stage in stages} == EPOCHS


QUICK = ("--tasks", "1", "--threads", "1", "--epochs-scale", "0.02")
EDITED = "# edited\n"


@pytest.fixture
def own_method(tmp_path: Path) -> Path:
    """A plugin in a single file, with one method."""
    (tmp_path / "mine.py").write_text(METHOD.format(name="mine"))
    return tmp_path / "mine.py"


def edit(plugin: Path) -> None:
    plugin.write_text(plugin.read_text() + EDITED)


@pytest.mark.slow
def test_edited_code_makes_new_runs_of_its_methods_only(own_method: Path) -> None:
    place = own_method.parent
    words = ("compare", "mine", "replay", "digits-b0-5", *QUICK, "--plugin", "mine.py")
    assert said(*words, cwd=place).count("starts in") == 2
    edit(own_method)
    after = said(*words, cwd=place)
    assert "replay, seed 0: reused from runs/replay-digits-b0-5-seed0" in after
    assert "mine, seed 0: starts in runs/mine-digits-b0-5-seed0-2" in after
    (place / "own.toml").write_text(
        'methods = ["mine", "replay"]\nstreams = ["digits-b0-5"]\ntasks = 1\nepochs_scale = 0.02\n'
    )
    suite = ("reproduce", "own.toml", "--threads", "1", "--dry-run", "--json", "--plugin", "mine.py")
    assert [run["state"] for run in json.loads(said(*suite, cwd=place))["runs"]] == ["finished", "finished"]
    edit(own_method)
    assert [run["state"] for run in json.loads(said(*suite, cwd=place))["runs"]] == ["to be started", "finished"]


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_code_and_has_a_copy_of_its_own(own_method: Path) -> None:
    place, run = own_method.parent, own_method.parent / "r"
    said("run", "mine", "digits-b0-5", *QUICK, "--plugin", "mine.py", "--out", "r", cwd=place)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("tasks = 1", "tasks = 2"))
    assert (run / "plugins" / "1" / "mine.py").read_text() == own_method.read_text()
    edit(own_method)
    assert complaint("resume", "r", "--plugin", "mine.py", cwd=place) == (
        f"drcil: r cannot be resumed: the code of the plugin '{own_method}' has changed since the run began; "
        "start a new run, or restore the code, of which r/plugins/1 has a copy"
    )
    said("resume", "r", "--plugin", "r/plugins/1/mine.py", cwd=place)
    assert result(run)["tasks"] == [2, 2]


@pytest.mark.slow
def test_a_model_is_read_with_other_code_and_a_warning(own_method: Path) -> None:
    place = own_method.parent
    said("run", "mine", "digits-b0-5", *QUICK, "--plugin", "mine.py", "--out", "r", cwd=place)
    words = ("evaluate", "r/tasks/01", "digits-b0-5", "--json", "--plugin", "mine.py")
    before = command(*words, cwd=place)
    edit(own_method)
    after = command(*words, cwd=place)
    assert (before.returncode, after.returncode, before.stderr) == (0, 0, "") and before.stdout == after.stdout
    assert after.stderr == (
        f"drcil: warning: the code of the plugin '{own_method}' has changed since r/tasks/01 was saved; "
        "predictions may differ\n"
    )


def test_a_run_without_plugins_does_not_mention_them(tmp_path: Path) -> None:
    run = create_run(complete(RunSettings(method="replay", stream="digits-b0-5")), tmp_path / "r")
    begun = json.loads((run.directory / "beginning.json").read_text())
    assert begun.keys() == {"settings", "resolved", "data", "checksum"} and "plugins" not in begun["settings"]
    assert not (run.directory / "plugins").exists()


def test_edited_code_is_not_the_code_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: the run is neither reused nor resumed, and has a copy of the code it began with."""
    for name in ("_named", "_codes"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))
    plugin = tmp_path / "mine.py"
    plugin.write_text("factor = 1\n")
    drcil.use_plugins(str(plugin))
    plugins = registry.named_plugins()
    settings = complete(
        RunSettings(method="replay", stream="digits-b0-5", tasks=1, epochs_scale=0.001, plugins=plugins)
    )
    run = create_run(settings, tmp_path / "runs" / "r")
    run.train()
    known = KnownRuns(tmp_path / "runs")
    assert known.find(settings, Datasets()) is not None
    assert (run.directory / "plugins" / "1" / "mine.py").read_text() == "factor = 1\n"
    plugin.write_text("factor = 2\n")
    registry._codes.clear()  # As in another process.
    assert known.find(settings, Datasets()) is None
    with pytest.raises(UserError, match=f"the code of the plugin '{plugin}' has changed since the run began"):
        check_unchanged(run.directory, settings, plan_run(settings))


def without_clocks(table: Path) -> list[dict[str, str]]:
    with table.open() as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_without_it_a_run_is_shown_but_not_evaluated_until_it_is_named_again(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop, tmp_path / "copy")
    config = tmp_path / "copy" / "r" / "config.toml"
    gone = str(tmp_path / "gone" / "my_plugin.py")
    config.write_text(config.read_text().replace(str(shop / "my_plugin.py"), gone))
    refused = complaint("evaluate", "copy/r", STREAM, cwd=tmp_path)
    assert refused == (
        f"drcil: copy/r needs the plugin '{gone}'; install it, or name it with --plugin or drcil.use_plugins"
    )
    assert json.loads(said("show", "copy/r", "--json", cwd=tmp_path)).items() <= result(shop / "r").items()
    said("evaluate", "copy/r", STREAM, "--plugin", "copy/my_plugin.py", cwd=tmp_path)


@pytest.mark.slow
def test_an_installed_one_needs_no_naming_and_is_kept(tmp_path: Path) -> None:
    for file in OUTSIDE.glob("my_plugin.*"):
        shutil.copy(file, tmp_path)
    install(tmp_path, "mine", "my_plugin")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    said("run", "finetune", *TINY, *BRIEF, "--out", "r", cwd=tmp_path, PYTHONPATH=path)
    assert plugins_of(tmp_path / "r") == ["mine"]
    assert "needs the plugin 'mine'; install it" in complaint("resume", "r", cwd=tmp_path)
    listed = json.loads(said("list", "methods", "--json", cwd=tmp_path, PYTHONPATH=path))
    assert {entry["name"]: entry["origin"] for entry in listed if entry["origin"]} == {"smooth-replay": "mine"}


def test_a_run_stores_only_the_plugins_that_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES))
    BACKBONES.register("other")(BACKBONES["resnet-digits"])
    digits = load_dataset("digits")
    with_other = replace(digits, spec=replace(digits.spec, backbone="other"))
    for number, (backbone, dataset, plugins) in enumerate(
        ((None, digits, ()), (None, with_other, (__name__,)), ("other", digits, (__name__,)))
    ):
        settings = complete(RunSettings(method="replay", stream="digits-b0-5", backbone=backbone))
        plan = plan_run(settings, load_stream(settings, dataset))
        assert create_run(settings, tmp_path / str(number), plan).settings.plugins == plugins


@pytest.mark.slow
def test_a_list_shows_where_a_thing_comes_from(shop: Path) -> None:
    shown = said("--plugin", "my_plugin.py", "list", "backbones", cwd=shop)
    rows = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line.strip()}
    assert rows["name"] == "origin" and rows["small-cnn"] == "my_plugin.py" and rows["resnet32"] != "my_plugin.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (None, "there is no such file"),
        ("class Half(:\n", "invalid syntax ({file}, line 1)"),
        (
            "from drcil.heads.head import HEADS\nHEADS.register('drc')(object)\n",
            "head 'drc' is registered twice, by drcil",
        ),
    ],
    ids=["missing", "syntax", "clash"],
)
def test_one_that_cannot_be_used_is_told_in_one_line(code: str | None, told: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    if code is not None:
        file.write_text(code)
    line = complaint("list", "heads", "--plugin", "own.py", cwd=tmp_path)
    assert line.startswith(f"drcil: the plugin '{file}' cannot be ") and told.format(file=file) in line


def test_help_imports_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert "--backbone" in said("run", "--help", "--plugin", "broken.py", cwd=tmp_path, DRCIL_PLUGINS="broken.py")


@pytest.mark.slow
def test_its_method_is_checked_on_its_own_data(shop: Path) -> None:
    words = ("check", "smooth-replay", "--stream", STREAM, "--law", "memory", "--law", "resuming", "--law", "saving")
    assert said(*words, "--plugin", "my_plugin.py", cwd=shop).splitlines() == [
        "memory: holds",
        "resuming: holds",
        "saving: holds",
    ]


@pytest.mark.slow
def test_its_names_are_listed_with_their_origin(shop: Path) -> None:
    for kind, name in (("datasets", "bars"), ("streams", STREAM), ("augmentations", "roll"), ("metrics", "worst_task")):
        listed = json.loads(said("list", kind, "--json", "--plugin", "my_plugin.py", cwd=shop))
        (entry,) = [entry for entry in listed if entry["name"] == name]
        assert entry["origin"] == str(shop / "my_plugin.py")
