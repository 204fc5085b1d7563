"""Runs in several real processes: launched in every way, killed, stopped, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from drcil.disk import read_tensors
from drcil.errors import UserError
from drcil.launch.member import VARIABLE, Member, find_member
from drcil.launch.session import open_session
from drcil.launch.supervisor import wanted_processes
from drcil.runs.run import Run

PYTHON = [sys.executable, "-P", "-m", "drcil"]
OPTIONS = ["mafdrc", "digits-b0-5", "--tasks", "2", "--epochs-scale", "0.1", "--threads", "1", "--quiet"]
PATIENCE = 240
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a",
    "MASTER_PORT": "7",
}  # fmt: skip
SLURM = {
    "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[07-09]",
}  # fmt: skip


def test_a_process_knows_what_its_launcher_says() -> None:
    assert find_member({}) is None
    assert find_member({VARIABLE: "1/3@77"}) == Member(1, 3, 1, "127.0.0.1", 77, "drcil")
    restarted = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}
    assert find_member(restarted) == Member(3, 4, 1, "a", 7, "torchrun", 2)
    assert find_member({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None, "one process works alone"
    assert find_member(SLURM) == Member(3, 4, 1, "node07", 16_702, "srun")
    assert find_member({**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "9"}) == Member(3, 4, 1, "b", 9, "srun")
    job = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")}
    assert find_member({**job, "SLURM_NTASKS": "4"}) is None, "a batch script is not a step"


@pytest.mark.parametrize("variables", [{**TORCHRUN, "RANK": "first"}, {**SLURM, "SLURM_LOCALID": "x"}, {VARIABLE: "1"}])
def test_a_launcher_that_says_nonsense_is_told(variables: dict[str, str]) -> None:
    with pytest.raises(UserError, match="launcher"):
        find_member(variables)
    with pytest.raises(UserError, match=r"MASTER_PORT.*missing"):
        find_member({name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"})


class Board(dict[str, bytes]):
    """A store of one process, for several threads."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_a_session_is_of_the_processes_of_now() -> None:
    """Whatever those of before have left, and in whatever order the new ones come."""
    board, patience = Board(), timedelta(seconds=20)
    board.set("drcil/greeting/1", "gone")
    board.set("drcil/proposal", json.dumps({"name": "old", "greetings": ["a", "gone", "b"]}))
    board.set("drcil/open/old", "1")
    names = set()
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        with ThreadPoolExecutor(3) as threads:
            asked = []
            for rank in order:
                asked.append(threads.submit(open_session, board, rank, 3, patience))
                time.sleep(0.15)
            found = {one.result() for one in asked}
        assert len(found) == 1
        names |= found
    assert len(names) == 3 and "old" not in names
    with pytest.raises(RuntimeError, match="not all"):
        open_session(Board(), 1, 2, timedelta(seconds=0.1))


def test_no_more_processes_than_there_are_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert wanted_processes(cores, "cpu") == cores
    assert wanted_processes("auto", "cpu") == 1
    with pytest.raises(UserError, match=f"--devices {cores + 1} is more than this machine has: {cores} core"):
        wanted_processes(cores + 1, "cpu")


@pytest.mark.parametrize("given", ["0", "-1", "2.5", "two", "9999"])
def test_numbers_of_devices_are_checked(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    from drcil.cli import main

    assert main(["run", f"--devices={given}"]) == 2
    assert "--devices takes a number from 1 to 1024, or auto" in capsys.readouterr().err


class Launched:
    """A command and the processes that it starts."""

    def __init__(self, command: list[str], log: Path, **variables: str) -> None:
        self.log, self._begun = log, time.monotonic()
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **variables}, cwd=log.parent
            )

    def members(self) -> list[int]:
        """The processes that share the run."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().decode().split("\0")
                parents = _ancestors(int(place.name))
            except (OSError, ValueError):
                continue
            own = "run" in words and any("drcil" in word for word in words) and "torch.distributed.run" not in words
            if own and self.process.pid in parents:
                found.append(int(place.name))
        return sorted(found)

    def wait_for(self, path: Path, text: str) -> None:
        """Until a file has some text."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if path.exists() and text in path.read_text(errors="replace"):
                return
            time.sleep(0.05)
        raise AssertionError(f"no {text} in {path}: {self.log.read_text()}")

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    @property
    def words(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("drcil: ")]


def _ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        process = int(re.search(r"PPid:\s+(\d+)", (Path("/proc") / str(process) / "status").read_text())[1])  # type: ignore[index]
        found.append(process)
    return found


@contextmanager
def launched(command: list[str], log: Path, **variables: str) -> Iterator[Launched]:
    one = Launched(command, log, **variables)
    try:
        yield one
    finally:
        left = one.members()
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                continue


def torchrun(size: int, *words: str, restarts: int = 0) -> list[str]:
    own = ["--standalone", f"--nproc-per-node={size}", f"--max-restarts={restarts}", "-m", "drcil"]
    return [sys.executable, "-m", "torch.distributed.run", *own, *words]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """All that the tasks of a run keep as tensors."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("tasks/*/*.safetensors")):
        tensors, _ = read_tensors(file)
        found |= {f"{file.parent.name}/{file.name}/{name}": tensor for name, tensor in tensors.items()}
    assert found
    return found


def figures(directory: Path) -> Any:
    result = Run.open(directory).result()
    return [result["curve"], result["matrix"], result["complete"]]


def require_equal(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys() and figures(one) == figures(other)
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing happened to."""
    place = tmp_path_factory.mktemp("undisturbed")
    with launched([*PYTHON, "run", *OPTIONS, "--devices", "2", "--out", "run"], place / "log") as one:
        assert one.end() == 0, one.log.read_text()
    return place / "run"


@pytest.mark.slow
def test_every_launcher_gives_the_same_run(undisturbed: Path, tmp_path: Path) -> None:
    with launched(torchrun(2, "run", *OPTIONS, "--out", "run"), tmp_path / "log") as one:
        assert one.end() == 0, one.log.read_text()
    require_equal(tmp_path / "run", undisturbed)
    assert one.log.read_text().count("Avg") == 1, "one process prints"


@pytest.mark.slow
def test_a_lost_process_ends_the_others_and_the_run_is_resumed(undisturbed: Path, tmp_path: Path) -> None:
    """By as many processes bit for bit, by another number up to rounding."""
    settings = ["--devices", "2", "--out", "run"]
    with launched([*PYTHON, "run", *OPTIONS, *settings], tmp_path / "log") as one:
        one.wait_for(tmp_path / "run" / "events.jsonl", '"EpochDone"')
        os.kill(one.members()[-1], signal.SIGKILL)
        begun = time.monotonic()
        assert one.end() == 1
        assert time.monotonic() - begun < 60 and not one.members()
    assert len(one.words) == 1 and "drcil resume" in one.words[0], one.log.read_text()
    subprocess.run(["cp", "-r", tmp_path / "run", tmp_path / "alone"], check=True)
    with launched([*PYTHON, "resume", "run", "--quiet"], tmp_path / "log") as one:
        assert one.end() == 0, one.log.read_text()
    require_equal(tmp_path / "run", undisturbed)
    with launched([*PYTHON, "resume", "alone", "--devices", "1", "--quiet"], tmp_path / "log") as one:
        assert one.end() == 0, one.log.read_text()
    assert figures(tmp_path / "alone")[2]


@pytest.mark.slow
@pytest.mark.parametrize("out", [["--out", "runs/own"], []], ids=["named", "by default"])
def test_torchrun_starts_again_where_a_process_was_lost(undisturbed: Path, tmp_path: Path, out: list[str]) -> None:
    directory = tmp_path / "runs" / ("own" if out else undisturbed_name())
    with launched(torchrun(2, "run", *OPTIONS, *out, restarts=1), tmp_path / "log") as one:
        one.wait_for(directory / "events.jsonl", '"EpochDone"')
        os.kill(one.members()[-1], signal.SIGKILL)
        assert one.end() == 0, one.log.read_text()
    assert [place.name for place in directory.parent.iterdir()] == [directory.name], "the same run went on"
    require_equal(directory, undisturbed)


def undisturbed_name() -> str:
    return "mafdrc-digits-b0-5-seed0"


@pytest.mark.slow
def test_a_process_that_hangs_is_noticed(tmp_path: Path) -> None:
    settings = ["--devices", "2", "--timeout", "8", "--out", "run"]
    with launched([*PYTHON, "run", *OPTIONS, *settings], tmp_path / "log") as one:
        one.wait_for(tmp_path / "run" / "events.jsonl", '"EpochDone"')
        os.kill(one.members()[-1], signal.SIGSTOP)
        begun = time.monotonic()
        assert one.end() == 1
        assert time.monotonic() - begun < 60
    assert len(one.words) == 1 and "has not answered for 8 seconds" in one.words[0], one.log.read_text()


@pytest.mark.slow
def test_what_is_wrong_is_told_once(tmp_path: Path) -> None:
    """By one of three processes; and a second launch on the directory of a first is refused."""
    small = ["--set", "first.batch_size=2", "--out", "small"]
    with launched(torchrun(3, "run", *OPTIONS, *small), tmp_path / "log") as one:
        assert one.end() != 0
    assert len(one.words) == 1 and "fewer than the 3 processes" in one.words[0], one.log.read_text()
    long = ["--epochs-scale", "5", "--devices", "2", "--out", "run"]
    with launched([*PYTHON, "run", *OPTIONS, *long], tmp_path / "log") as one:
        one.wait_for(tmp_path / "run" / "events.jsonl", '"EpochDone"')
        with launched([*PYTHON, "resume", "run", "--devices", "2"], tmp_path / "second") as second:
            assert second.end() == 2
        assert len(second.words) == 1 and "in use by another process" in second.words[0]
        one.process.terminate()
        assert one.end() == 130
    assert len(one.words) == 1 and "drcil resume run" in one.words[0], one.log.read_text()
