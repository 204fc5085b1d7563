"""Run directories: made, found and refused."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drcil
from drcil import Learner
from drcil.cli import main
from drcil.errors import UserError
from drcil.files import read_checksummed_json, write_checksummed_json
from drcil.runs.evaluation import evaluate
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete, load_stream, plan_run
from drcil.runs.run_files import OWNER, run_lock
from drcil.settings import RunSettings
from drcil.streams.stream import make_stream
from drcil.train import EngineSettings
from drcil.train.events import EpochDone, Event, StepDone
from support.model_edits import edit_state
from support.runs import outcome
from support.token_backbone import register_tokens

SETTINGS = complete(
    RunSettings(
        method="replay",
        stream="digits-b0-5",
        tasks=1,
        epochs_scale=0.02,
        settings={"first.lr": 0.01},
        engine=EngineSettings(workers=0),
    )
)


@pytest.mark.slow
def test_settings_survive_the_disk(tmp_path: Path) -> None:
    settings = complete(
        RunSettings(
            method="replay",
            stream="digits-b0-5",
            seed=3,
            order_seed=4,
            memory="2/class",
            tasks=1,
            augment="none",
            validation=0.25,
            profile="cpu",
            settings={"first.curve": "steps", "first.milestones": [1, 2], "first.lr": 1e-3, "first.warmup": 0},
            threads=1,
            engine=EngineSettings.model_validate({"device": "cpu", "workers": 0, "cache": "1GB", "eval_every": 1}),
        )
    )
    create_run(settings, tmp_path / "run")
    assert Run.open(tmp_path / "run").settings == settings


def test_without_a_place_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = [create_run(SETTINGS).directory.as_posix() for _ in range(3)]
    name = "runs/replay-digits-b0-5-seed0"
    assert places == [name, f"{name}-2", f"{name}-3"]


def test_nothing_that_is_there_is_touched(tmp_path: Path) -> None:
    create_run(SETTINGS, tmp_path / "run")
    with pytest.raises(UserError, match=r"run already contains a run; continue it with 'drcil resume .*run'"):
        create_run(SETTINGS, tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("")
    for place in ("full", "full/letter"):
        with pytest.raises(UserError, match="exists and is not an empty directory; choose another --out"):
            create_run(SETTINGS, tmp_path / place)
    with pytest.raises(UserError, match=r"cannot write .*: Not a directory"):
        create_run(SETTINGS, tmp_path / "full" / "letter" / "run")


def test_a_place_where_making_a_run_was_killed_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".config.toml.123.tmp").write_text("half")
    assert create_run(SETTINGS, tmp_path / "run").settings == SETTINGS


def test_what_is_not_a_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run: it has no config.toml"):
        Run.open(tmp_path)
    config = tmp_path / "config.toml"
    for text, sentence in (
        ("format = 9", "has run format 9; this version of drcil reads format 3"),
        ("format =", "config.toml is not valid TOML"),
        ('format = 3\nmethod = "replay"', "'stream' is missing"),
    ):
        config.write_text(text)
        with pytest.raises(UserError, match=sentence):
            Run.open(tmp_path)


def test_a_run_without_a_finished_task_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no result yet: its first task is not finished"):
        create_run(SETTINGS, tmp_path / "run").result()


def test_going_again_on_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = create_run(SETTINGS, tmp_path / "run")
    first = run.train()
    files = {file: file.read_bytes() for file in (tmp_path / "run" / "tasks").rglob("*") if file.is_file()}
    assert Run.open(tmp_path / "run").train() == first == run.result()
    assert {file: file.read_bytes() for file in files} == files
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["Started", "StageStarted", "EpochDone", "StageDone", "TaskDone"]


def test_tasks_are_counted_beyond_ninety_nine(tmp_path: Path) -> None:
    expected = [f"{number:02d}" for number in range(1, 102)]
    for name in (*expected, ".102.7.tmp", "01-backup", "notes"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
    run = Run(tmp_path, RunSettings(method="replay", stream="x"))
    assert [task.name for task in run.finished_tasks()] == expected
    (tmp_path / "tasks" / "07").rmdir()
    with pytest.raises(UserError, match="is incomplete: task 7 is missing, but later ones are there"):
        run.finished_tasks()


def test_the_readout_that_leads_is_a_matter_of_reading_alone(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stream": "digits-b0-5", "tasks": 2, "epochs_scale": 0.02, "validation": 0.2}
    one, other = (
        create_run(complete(RunSettings(method=name, **options)), tmp_path / name)
        for name in ("foster", "foster:boosted")
    )
    assert one.settings.identity() == other.settings.identity()
    one.train()
    other.train()
    compressed, boosted = (outcome(run.directory) for run in (one, other))
    assert (compressed["result"]["readout"], boosted["result"]["readout"]) == ("compressed", "boosted")
    first, second = one.result(), other.result()
    clocks = {name: getattr(first, name) for name in ("seconds", "per_task")}
    assert first.led_by("boosted") == second.model_copy(update=clocks)
    assert second.led_by(None).to_json()["curve"] == compressed["result"]["curve"] == first.figure("curve")
    assert boosted["result"]["curve"] == second.figure("curve") == first.figure("curve", "boosted")
    assert boosted["result"]["per_task"][1]["parameters"] > 1.9 * compressed["result"]["per_task"][1]["parameters"]

    # A run that is read in another way goes on without training.
    config = one.directory / "config.toml"
    config.write_text('readout = "boosted"\n' + config.read_text())
    assert Run.open(one.directory).train().to_json()["last"] == boosted["result"]["last"]
    config.write_text(config.read_text().replace('"boosted"', '"bosted"'))
    with pytest.raises(UserError, match="unknown readout of 'foster' 'bosted'; did you mean 'boosted'"):
        Run.open(one.directory).train()


def test_a_run_is_shown_and_measured_by_the_readout_that_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "run")
    options = ["--tasks", "2", "--epochs-scale", "0.05", "--threads", "1", "--out", place]
    assert main(["run", "icarl:classifier", "digits-b0-5", *options]) == 0
    assert capsys.readouterr().out.startswith(f"icarl:classifier on digits-b0-5, in {place}\n")
    for readout, asked in (("classifier", []), ("nme", ["--readout", "nme"])):
        assert main(["show", place, "--json", *asked]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["method"], result["readout"]) == ("icarl", readout)
        assert result["avg"] == result["readouts"][readout]["avg"]
        assert main(["evaluate", place, "digits-b0-5", "--json", "--threads", "1", *asked]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["readout"], found["accuracy"]) == (readout, result["last"])
        assert main(["show", place, *asked]) == 0
        title, header, *_ = capsys.readouterr().out.splitlines()
        assert title.startswith("icarl on" if asked else "icarl:classifier on")
        assert header.split()[2:5] == [readout, "avg", "nme" if readout == "classifier" else "classifier"]
    assert main(["show", place, "--readout", "nne"]) == 2
    assert "unknown readout of 'icarl' 'nne'; did you mean 'nme'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["icarl", "digits-b0-5", "--memory", "5"], "has none for each of 10 classes; give a memory of at least 10"),
        (["finetune", "digits-b0-5", "--memory", "5"], "'finetune' has a memory of 'none' by definition"),
        (["joint", "digits-b0-5", "--memory", "20/class"], "'joint' has a memory of 'all' by definition"),
    ],
)
def test_a_memory_that_will_not_do_is_refused_before_there_is_a_directory(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_held_out_share_is_measured_over_all_classes_seen(tmp_path: Path) -> None:
    """Also in between, where it takes the place of the test images."""
    events: list[EpochDone] = []

    def listener(event: Event) -> None:
        if isinstance(event, EpochDone):
            events.append(event)

    chosen = SETTINGS.model_copy(update={"tasks": 2, "validation": 0.25, "engine": EngineSettings(eval_every=1)})
    run = create_run(chosen, tmp_path / "run")
    stream = load_stream(run.settings)
    result = run.train(listener=listener).to_json()
    first, second = (stream.task(number).validation for number in (1, 2))
    assert first is not None and second is not None
    model = drcil.load(run.finished_tasks()[-1])
    assert result["per_task"][1]["validation"] == pytest.approx(model.evaluate(first.join(second)), abs=0.005)
    assert {event.measured_on for event in events} == {"validation"}
    # What is measured after the last epoch is the net that is kept, on the new classes alone.
    assert events[-1].accuracy == pytest.approx(model.evaluate(second))


def test_classes_too_small_to_hold_anything_out_are_learnt_all_the_same(tmp_path: Path) -> None:
    chosen = SETTINGS.model_copy(update={"tasks": 2, "validation": 0.25})
    digits = load_stream(chosen)
    train = digits.dataset.train
    kept = ~np.isin(train.labels, digits.order[:2])
    for label in digits.order[:2]:
        kept[np.argmax(train.labels == label)] = True
    stream = load_stream(chosen, replace(digits.dataset, train=train.subset(kept)))
    plan = plan_run(chosen, stream)
    result = create_run(chosen, tmp_path / "run", plan).train(plan).to_json()
    assert stream.task(1).validation is None and len(stream.task(1).new) == 2
    assert [task["validation"] is None for task in result["per_task"]] == [True, False]


@pytest.mark.parametrize("backbone", ["resnet-digits", "tokens"])
def test_images_that_leave_a_single_value_are_trained_on(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 x 4 pixels a map of 1 x 1 is left; a last batch of one image could not be normalised by itself."""
    register_tokens(monkeypatch)
    stream = make_stream("digits-b0-5", image_size=4)
    size = next(size for size in range(20, 100) if len(stream[0].new) % size == 1)
    steps: list[int] = []

    def listener(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(event.images)

    brief: dict[str, Any] = {"backbone": backbone, "epochs_scale": 0.001}
    Learner("finetune", settings={"first.batch_size": size}, listener=listener, **brief).learn(stream[0])
    assert steps == [size] * (len(stream[0].new) // size - 1) + [size + 1]
    alone = Learner("finetune", settings={"first.batch_size": 1}, **brief)
    with pytest.raises(UserError, match="cannot train on one image of 4 x 4 pixels at a time"):
        alone.learn(stream[0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished") / "run"
    create_run(SETTINGS.model_copy(update={"tasks": 2}), directory).train()
    return directory


def test_the_result_is_what_the_tasks_say_whatever_becomes_of_its_file(finished: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    result = Run.read(finished).result()
    file = directory / "result.json"
    content = file.read_text()
    for damaged in ("", "{}", content.replace('"avg": ', '"avg": 1'), content[:-100]):
        file.write_text(damaged)
        assert Run.read(directory).result() == result
    file.unlink()
    assert Run.read(directory).result() == result
    assert Run.open(directory).train() == result, "and it is written again"
    assert file.read_text() == content


def test_tasks_that_were_exchanged_or_edited_are_noticed(finished: Path, tmp_path: Path) -> None:
    for change, sentence in (
        (lambda tasks: shutil.copytree(tasks / "01", tasks / "02", dirs_exist_ok=True), "02 is not the run's task 2"),
        (
            lambda tasks: edit_state(tasks / "01", lambda state: state["task_record"]["task"].update(new_images=1)),
            "02 does not follow",
        ),
        (lambda tasks: shutil.rmtree(tasks / "01"), "is incomplete: task 1 is missing, but later ones are there"),
    ):
        directory = shutil.copytree(finished, tmp_path / sentence[:9].strip())
        change(directory / "tasks")
        (directory / "result.json").unlink()
        for use in (
            lambda directory: Run.open(directory).result(),
            lambda directory: Run.open(directory).train(),
            lambda directory: evaluate(directory, "digits-b0-5"),
        ):
            with pytest.raises(UserError, match=sentence):
                use(directory)


def test_a_run_is_not_written_through_links(finished: Path, tmp_path: Path) -> None:
    for name in ("tasks", "snapshot"):
        outside = tmp_path / f"outside-{name}"
        outside.mkdir()
        (outside / "precious").touch()
        run = create_run(SETTINGS, tmp_path / name)
        (run.directory / name).symlink_to(outside)
        with pytest.raises(UserError, match=f"{name} is a link, and drcil follows no links inside"):
            run.train()
        assert [file.name for file in outside.iterdir()] == ["precious"]


def test_a_finished_run_is_not_written_to(finished: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in (finished, *finished.rglob("*"))}
    Run.open(finished).train()
    assert {file: file.stat().st_mtime_ns for file in (finished, *finished.rglob("*"))} == before


def test_a_run_from_before_a_setting_existed_goes_on(finished: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    begun = read_checksummed_json(directory / "beginning.json")
    del begun["resolved"]["augment"]
    write_checksummed_json(directory / "beginning.json", begun)
    config = directory / "config.toml"
    config.write_text(config.read_text().replace("tasks = 2", "tasks = 3"))
    assert len(Run.open(directory).train().to_json()["curve"]) == 3


@pytest.mark.parametrize("entry", ["tasks", "readouts", "per_task", "seconds", "settings", "matrix"])
@pytest.mark.parametrize("value", [None, [], {}, "x", 7])
def test_a_result_of_another_form_is_made_again(entry: str, value: Any, finished: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    kept = read_checksummed_json(directory / "result.json")
    write_checksummed_json(directory / "result.json", {**kept, entry: value})
    found, expected = Run.read(directory).result(), Run.read(finished).result()
    assert found == expected or (entry, value) == ("seconds", 7)


def test_a_result_that_was_measured_in_another_way_is_made_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predictions are still there."""
    directory = shutil.copytree(finished, tmp_path / "run")
    values = read_checksummed_json(directory / "result.json")
    values["readouts"]["classifier"]["avg"] = 50.0
    write_checksummed_json(directory / "result.json", values)
    assert Run.read(directory).result().figure("avg") == 50.0
    monkeypatch.setattr("drcil.runs.execution.MEASURE", 1)
    assert Run.read(directory).result() == Run.read(finished).result()


def test_a_run_is_planned_once_and_its_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command to the end of the third task: one model, one fingerprint, and no file of a finished task."""
    calls: Counter[str] = Counter()
    reads: Counter[str] = Counter()

    def count(name: str, counter: Counter[str], key: Callable[..., str]) -> None:
        module, _, attribute = name.rpartition(".")
        original = getattr(import_module(module), attribute)

        def counted(*arguments: Any, **options: Any) -> Any:
            counter[key(*arguments)] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(name, counted)

    count("drcil.runs.plan.new_model", calls, lambda *_: "models")
    count("drcil.runs.plan.dataset_fingerprint", calls, lambda *_: "fingerprints")
    count("drcil.runs.result.read_state_json", reads, lambda directory: directory.name)
    count("drcil.runs.execution.read_beside", reads, lambda directory, *_: directory.name)
    options = ["--tasks", "3", "--epochs-scale", "0.02", "--threads", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["run", "replay", "digits-b0-5", *options]) == 0
    assert calls == {"models": 1, "fingerprints": 1}
    assert reads == {"01": 1, "02": 1, "03": 1}, "each once, after it was written"


def test_a_log_that_leads_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    run = create_run(SETTINGS, tmp_path / "run")
    (tmp_path / "precious").touch()
    (run.directory / "events.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"cannot write .*events.jsonl: it is a link"):
        run.train()
    assert not (tmp_path / "precious").read_text()


def test_what_was_not_left_by_a_kill_stays(tmp_path: Path) -> None:
    run = create_run(SETTINGS, tmp_path / "run")
    (run.directory / ".notes.tmp").touch()
    (run.directory / ".config.toml.1.tmp").mkdir()
    run.train()
    assert sorted(file.name for file in run.directory.glob(".*.tmp")) == [".notes.tmp"]


def test_a_process_of_another_machine_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a network drive passes no locks on: by its note, as long as that is touched."""
    monkeypatch.setattr("platform.node", lambda: "here")
    (tmp_path / OWNER).write_text("far-away")
    touched = os.stat(tmp_path / OWNER).st_mtime
    # Touched in the future: it is recent however long this test has to wait for a processor.
    os.utime(tmp_path / OWNER, (touched + 3600, touched + 3600))
    with pytest.raises(UserError, match="in use by a process on far-away"), run_lock(tmp_path):
        pass
    assert (tmp_path / OWNER).read_text() == "far-away"
    os.utime(tmp_path / OWNER, (touched - 90, touched - 90))
    with run_lock(tmp_path):
        assert (tmp_path / OWNER).read_text() == "here"
    assert not (tmp_path / OWNER).exists()
    (tmp_path / OWNER).write_text("here")
    with run_lock(tmp_path):
        pass
