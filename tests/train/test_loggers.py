"""Loggers: told every epoch once, also of what earlier processes did; they change nothing and end nothing."""

from __future__ import annotations

import csv
import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import drcil
from drcil.errors import UserError
from drcil.files import read_tensors
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.runs.run_files import EVENTS, log_event, records_of
from drcil.settings import RunSettings
from drcil.train.events import EpochDone, Event, Record, StageStarted, TaskDone
from drcil.train.loggers import LOGGERS, known_loggers
from support.documents import SUPPORT
from support.logged_runs import WHOLE, started, tell

TRAINED = {"1": 3, "2": 2}
"""Epochs of the runs here, by task."""


def table(directory: Path, name: str) -> list[dict[str, str]]:
    with (directory / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_tables_have_a_row_for_every_epoch_and_every_result(tmp_path: Path) -> None:
    tell(tmp_path, WHOLE)
    epochs, tasks = table(tmp_path, "epochs.csv"), table(tmp_path, "tasks.csv")
    assert [row["epoch"] for row in epochs] == ["1", "2", "3"] * 3
    assert epochs[-1] == {
        "task": "2", "stage": "fusion, then rest", "epoch": "3", "rate": "0.1", "seconds": "1.0", "accuracy": "",
        "loss_classification": "2.2", "loss_total": "2.4", "loss_branch": "0.5",
    }  # fmt: skip
    assert epochs[0]["loss_branch"] == "", "the first task has no such loss"
    assert [(row["task"], row["classes"], row["last"], row["forgetting"]) for row in tasks] == [
        ("1", "2", "89.0", ""),
        ("2", "4", "88.0", "3.0"),
    ]


@pytest.mark.parametrize("trained", range(1, len(WHOLE)))
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_after_a_kill_anywhere_every_epoch_counts_once(trained: int, lost: int, tmp_path: Path) -> None:
    for event in killed_and_resumed(trained, lost):
        log_event(tmp_path, event)
    assert records_of(tmp_path) == [event for event in WHOLE if isinstance(event, Record)]


def killed_and_resumed(trained: int, lost: int) -> list[Event]:
    """It goes on within the stage it was in, so many epochs before; or with what comes next."""
    begun = max(number for number, event in enumerate(WHOLE[:trained]) if isinstance(event, StageStarted))
    again = max(begun + 1, trained - lost)
    first = WHOLE[begun]
    assert isinstance(first, StageStarted)
    if isinstance(WHOLE[again], EpochDone):
        return [*WHOLE[:trained], started(first.task, first.stage, again - begun - 1), *WHOLE[again:]]
    return [*WHOLE[:trained], *WHOLE[trained:]]


def test_after_a_kill_the_tables_are_those_of_a_whole_run(tmp_path: Path) -> None:
    tell(tmp_path / "whole", WHOLE)
    tell(tmp_path / "killed", WHOLE[:8])
    tell(tmp_path / "killed", killed_and_resumed(8, 1)[8:])
    for name in ("epochs.csv", "tasks.csv"):
        assert table(tmp_path / "killed", name) == table(tmp_path / "whole", name)


def test_a_log_that_was_cut_short_tells_the_rest(tmp_path: Path) -> None:
    tell(tmp_path, WHOLE[:4])
    log = tmp_path / EVENTS
    log.write_bytes(log.read_bytes()[:-10] + b'\n{"event": "EpochDone", "task": "one"}\n[]\n{"event": 5}\nnonsense')
    assert [record.task for record in records_of(tmp_path)] == [1, 1]


class Stop(Exception):
    """Raised out of the middle of a run."""


def make_run(directory: Path, *loggers: str) -> Run:
    """Two tasks of digits, a snapshot after each of a few steps."""
    options: dict[str, Any] = {"epochs_scale": 0.05, "tasks": 2, "engine": {"device": "cpu", "snapshot_seconds": 0}}
    sizes = {"first.batch_size": 256, "later.batch_size": 256}
    settings = complete(RunSettings(method="replay", stream="digits-b0-5", settings=sizes, loggers=loggers, **options))
    return create_run(settings, directory)


def stopping(kind: type[Event]) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if isinstance(event, kind):
            raise Stop

    return stop


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without loggers."""
    run = make_run(tmp_path_factory.mktemp("plain") / "run")
    run.train()
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same with loggers, stopped within a stage and after a task, and resumed."""
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path_factory.mktemp("stopped") / "run", "csv", "tensorboard")
    for kind in (EpochDone, TaskDone):
        with pytest.raises(Stop):
            Run.open(run.directory).train(listener=stopping(kind))
    Run.open(run.directory).train()
    return run


def weights(run: Run) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(run.directory.glob("tasks/*/*.safetensors")):
        found |= {f"{file.parent.name} {file.name} {name}": value for name, value in read_tensors(file)[0].items()}
    return found


def assert_same_weights(one: Run, other: Run) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def test_loggers_change_no_weight(plain: Run, stopped: Run) -> None:
    assert_same_weights(plain, stopped)


def test_the_tables_of_a_resumed_run_are_whole(stopped: Run) -> None:
    rows = table(stopped.directory, "epochs.csv")
    assert [(row["task"], row["epoch"]) for row in rows] == [
        (task, str(number + 1)) for task, epochs in TRAINED.items() for number in range(epochs)
    ]
    result = stopped.result()
    tasks = table(stopped.directory, "tasks.csv")
    assert [float(row["last"]) for row in tasks] == result.figure("curve")
    assert float(tasks[-1]["avg"]) == result.figure("avg")


def test_tensorboard_reads_every_epoch_once(stopped: Run) -> None:
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    files = list((stopped.directory / "tensorboard").iterdir())
    assert len(files) == 1, "those of earlier processes are replaced"
    found = reader.EventAccumulator(str(files[0])).Reload()
    rows = table(stopped.directory, "epochs.csv")
    assert {row["stage"] for row in rows} == {"first", "later"}
    for name in ("first", "later"):
        expected = [(step, row["loss_total"]) for step, row in enumerate(rows, start=1) if row["stage"] == name]
        logged = found.Scalars(f"{name}/loss_total")
        assert [event.step for event in logged] == [step for step, _ in expected]
        assert [event.value for event in logged] == pytest.approx([float(loss) for _, loss in expected])
        assert sorted(event.wall_time for event in logged) == [event.wall_time for event in logged]
    results = found.Scalars("tasks/classifier/last")
    assert [event.step for event in results] == [2, 4] and results[-1].value == pytest.approx(
        stopped.result().to_json()["last"]
    )


def test_a_logger_that_fails_is_told_of_once_and_ends_nothing(
    plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        calls = 0

        def __init__(self, directory: Path) -> None:
            pass

        def __call__(self, records: Sequence[Record]) -> None:
            Failing.calls += 1
            if Failing.calls == 2:
                raise RuntimeError("no more\nspace")

    monkeypatch.setattr(LOGGERS, "_entries", dict(LOGGERS))
    LOGGERS.register("failing")(Failing)
    told: list[str] = []
    run = make_run(tmp_path / "run", "failing", "csv")
    run.train(warn=told.append)
    assert told == ["the logger 'failing' failed and logs no more of this run: RuntimeError: no more space"]
    assert Failing.calls == 2 and len(table(run.directory, "epochs.csv")) == sum(TRAINED.values())
    assert_same_weights(plain, run)


def test_a_logger_writes_through_no_link(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "precious").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "precious")
    with pytest.warns(UserWarning, match="tensorboard is a link"):
        tell(tmp_path / "run", WHOLE, "tensorboard")
    assert not list((tmp_path / "precious").iterdir())


def test_names_are_known_installed_and_taken_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Distant:
        needs = "absent_package"

    monkeypatch.setattr(LOGGERS, "_entries", dict(LOGGERS))
    LOGGERS.register("distant")(Distant)
    assert known_loggers(["csv", "csv"]) == ("csv",)
    with pytest.raises(UserError, match=r"unknown logger 'cvs'; did you mean 'csv'\?"):
        known_loggers(["cvs"])
    # Some loggers leave a directory of their name behind, which Python would import.
    (tmp_path / Distant.needs).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"needs absent_package, which is not installed; install it with pip install"):
        known_loggers(["distant"])


def test_a_learner_is_logged_too(tmp_path: Path) -> None:
    logger = drcil.logger("csv", tmp_path / "logs")
    learner = drcil.Learner("replay", epochs_scale=0.03, device="cpu", listener=logger)
    learner.learn(drcil.stream("digits-b0-5")[0])
    assert [row["epoch"] for row in table(tmp_path / "logs", "epochs.csv")] == ["1", "2"]


_WANDB = """
import sys
from pathlib import Path
from support.documents import SUPPORT
from support.logged_runs import WHOLE, started, tell
directory = Path(sys.argv[1])
tell(directory, WHOLE[:7], "wandb")
tell(directory, [started(2, "adaptation", 1), *WHOLE[7:]], "wandb")
"""


@pytest.mark.slow
def test_weights_and_biases_gets_every_epoch_once_offline(tmp_path: Path) -> None:
    """In a process of its own: the package starts a server, and reads its settings once."""
    pytest.importorskip("wandb")
    own = {"WANDB_MODE": "offline", "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_CACHE_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", _WANDB, tmp_path / "run"],
        cwd=SUPPORT.parent,
        env={**os.environ, **own},
        check=True,
        capture_output=True,
    )
    latest = max((tmp_path / "run" / "wandb").glob("offline-run-*"))
    (file,) = latest.glob("*.wandb")
    rows = wandb_history(file)
    epochs = [row["epoch"] for row in rows if any(name.endswith("/loss_total") for name in row)]
    assert epochs == list(range(1, 10))
    assert [row["fusion, then rest/loss_total"] for row in rows if "fusion, then rest/loss_total" in row] == [
        2.0, 2.2, 2.4
    ]  # fmt: skip
    assert [(row["classes"], row["tasks/classifier/last"]) for row in rows if "classes" in row] == [(2, 89), (4, 88)]


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """What a file of an offline run would send, in order."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for data in wandb_records(file.read_bytes()):
        record = messages.Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Its records: in pieces, each with a checksum, a length and a kind, none across blocks of 32 KiB."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # Complete, or the last piece.
            yield whole
            whole = b""
