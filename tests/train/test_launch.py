"""Runs in several real processes: launched in every way, killed, stopped, refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from drcil.cli import main
from drcil.errors import UserError
from drcil.files import read_tensors
from drcil.process import LAUNCHER, ProcessInfo, find_process_info
from drcil.runs.execution import Run
from drcil.train.launch import number_of_processes
from support.processes import wait_for_text

PYTHON = [sys.executable, "-P", "-m", "drcil"]
OPTIONS = ["mafdrc", "digits-b0-5", "--tasks", "2", "--epochs-scale", "0.1", "--threads", "1", "--quiet"]
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a",
    "MASTER_PORT": "7",
}  # fmt: skip
SLURM = {
    "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[07-09]",
}  # fmt: skip


def test_a_process_knows_what_its_launcher_says() -> None:
    assert find_process_info({}) is None
    assert find_process_info({**TORCHRUN, LAUNCHER: "drcil"}) == ProcessInfo(3, 4, 1, "a", 7, "drcil")
    restarted = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}
    assert find_process_info(restarted) == ProcessInfo(3, 4, 1, "a", 7, "torchrun", 2)
    assert find_process_info({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None, "one process works alone"
    assert find_process_info(SLURM) == ProcessInfo(3, 4, 1, "node07", 16_702, "srun")
    assert find_process_info({**SLURM, "MASTER_ADDR": "b", "MASTER_PORT": "9"}) == ProcessInfo(3, 4, 1, "b", 9, "srun")
    job = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")}
    assert find_process_info({**job, "SLURM_NTASKS": "4"}) is None, "a batch script is not a step"


@pytest.mark.parametrize("variables", [{**TORCHRUN, "RANK": "first"}, {**SLURM, "SLURM_LOCALID": "x"}])
def test_a_launcher_that_says_nonsense_is_told(variables: dict[str, str]) -> None:
    with pytest.raises(UserError, match="launcher"):
        find_process_info(variables)
    with pytest.raises(UserError, match=r"MASTER_PORT.*missing"):
        find_process_info({name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"})


@pytest.mark.parametrize("variables", [TORCHRUN, SLURM], ids=["torchrun", "srun"])
def test_other_launchers_need_a_run_directory(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "mafdrc", "digits-b0-5"]) == 2
    assert "--out is required under" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "told"), [({0}, "1 core"), ({0, 2, 5}, "3 cores")])
def test_no_more_processes_than_there_are_cores(cores: set[int], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    assert number_of_processes(len(cores), "cpu") == len(cores)
    assert number_of_processes("auto", "cpu") == 1
    more = len(cores) + 1
    with pytest.raises(UserError, match=f"--devices {more} is more than this machine has: {told}$"):
        number_of_processes(more, "cpu")


@pytest.mark.parametrize("given", ["0", "-1", "2.5", "two", "9999"])
def test_numbers_of_devices_are_checked(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--devices={given}"]) == 2
    assert "--devices must be a whole number from 1 to 1024 or auto" in capsys.readouterr().err


class Launched:
    """A command and the processes that it starts."""

    def __init__(self, command: list[str], log: Path, **variables: str) -> None:
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **variables}, cwd=log.parent
            )

    def members(self) -> list[int]:
        """The processes that share the run: children of the command, in order of rank."""
        members = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                command = (directory / "cmdline").read_bytes().decode().split("\0")
                status = (directory / "status").read_text()
            except (OSError, ValueError):
                continue
            is_child = f"PPid:\t{self.process.pid}\n" in status
            if is_child and ("--multiprocessing-fork" in command or "drcil" in command):
                members.append(int(directory.name))
        return sorted(members)

    def wait_for(self, path: Path, text: str) -> None:
        """Until a file has some text."""
        try:
            wait_for_text(path, text, self.process)
        except AssertionError as error:
            error.add_note(self.log.read_text())
            raise

    def end(self) -> int:
        return self.process.wait()

    @property
    def words(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("drcil: ")]


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


def require_two_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("--devices 2 needs two cores")


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
    return [result.figure("curve"), result.figure("matrix"), result.complete]


def require_equal(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys() and figures(one) == figures(other)
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing happened to."""
    require_two_cores()
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
        assert one.end() == 1 and not one.members()
    assert len(one.words) == 1 and "drcil resume" in one.words[0], one.log.read_text()
    subprocess.run(["cp", "-r", tmp_path / "run", tmp_path / "alone"], check=True)
    with launched([*PYTHON, "resume", "run", "--quiet"], tmp_path / "log") as one:
        assert one.end() == 0, one.log.read_text()
    require_equal(tmp_path / "run", undisturbed)
    with launched([*PYTHON, "resume", "alone", "--devices", "1", "--quiet"], tmp_path / "log") as one:
        assert one.end() == 0, one.log.read_text()
    assert figures(tmp_path / "alone")[2]


@pytest.mark.slow
def test_torchrun_starts_again_where_a_process_was_lost(undisturbed: Path, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "own"
    with launched(torchrun(2, "run", *OPTIONS, "--out", "runs/own", restarts=1), tmp_path / "log") as one:
        one.wait_for(directory / "events.jsonl", '"EpochDone"')
        os.kill(one.members()[-1], signal.SIGKILL)
        assert one.end() == 0, one.log.read_text()
    assert [place.name for place in directory.parent.iterdir()] == [directory.name], "the same run went on"
    require_equal(directory, undisturbed)


@pytest.mark.slow
def test_a_process_that_hangs_is_noticed(tmp_path: Path) -> None:
    require_two_cores()
    settings = ["--devices", "2", "--timeout", "30", "--out", "run"]
    with launched([*PYTHON, "run", *OPTIONS, *settings], tmp_path / "log") as one:
        one.wait_for(tmp_path / "run" / "events.jsonl", '"EpochDone"')
        os.kill(one.members()[-1], signal.SIGSTOP)
        assert one.end() == 1
    assert len(one.words) == 1 and "has not answered for 30 seconds" in one.words[0], one.log.read_text()


@pytest.mark.slow
def test_what_is_wrong_is_told_once(tmp_path: Path) -> None:
    """By one of three processes; and a second launch on the directory of a first is refused."""
    small = ["--set", "first.batch_size=2", "--out", "small"]
    with launched(torchrun(3, "run", *OPTIONS, *small), tmp_path / "log") as one:
        assert one.end() != 0
    assert len(one.words) == 1 and "fewer than the 3 processes" in one.words[0], one.log.read_text()
    require_two_cores()
    long = ["--epochs-scale", "5", "--devices", "2", "--out", "run"]
    with launched([*PYTHON, "run", *OPTIONS, *long], tmp_path / "log") as one:
        one.wait_for(tmp_path / "run" / "events.jsonl", '"EpochDone"')
        with launched([*PYTHON, "resume", "run", "--devices", "2"], tmp_path / "second") as second:
            assert second.end() == 2
        assert len(second.words) == 1 and "in use by another process" in second.words[0]
        one.process.terminate()
        assert one.end() == 130
    assert len(one.words) == 1 and "drcil resume run" in one.words[0], one.log.read_text()
