"""Suites on a Ray cluster: what cannot be done is said at once, and what gets lost on the way changes no result."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drcil.cli import main
from drcil.errors import UserError
from drcil.experiments import ray_backend
from drcil.experiments.backends import BACKENDS, BackendRequest, check_node, versions
from drcil.experiments.ray_backend import Node, RetriedTask
from drcil.files import file_lock
from support.documents import SUPPORT
from support.processes import is_running, last_process, wait_for_end, wait_until
from support.runs import assert_same, outcome

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'drcil[ray]'")

SUITE = """
title = "Two methods on digits"
methods = ["replay", "icarl"]
streams = ["digits-b0-5"]
tasks = 3
epochs_scale = 0.2
seeds = 2
"""
ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With which Ray keeps to the loopback address."""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    Path("mine.toml").write_text(SUITE)


# What cannot be asked for


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence that a suite is refused with; nothing is begun."""
    assert main(["reproduce", "mine.toml", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("drcil: ") and error.count("\n") == 1, error
    assert [path.name for path in Path().iterdir()] == ["mine.toml"]
    return error.removeprefix("drcil: ").strip()


@pytest.mark.parametrize("verb", [["reproduce", "mine.toml"], ["compare", "replay", "icarl", "digits-b0-5"]])
@pytest.mark.parametrize("option", [["--cpus-per-run", "2"], ["--gpus-per-run", "0.5"], ["--ray-address", "auto"]])
def test_options_of_a_cluster_need_one(verb: list[str], option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, *option]) == 2
    told = f"drcil: {option[0]} is for --engine ray; without it there are --jobs and --threads\n"
    assert capsys.readouterr().err == told
    assert [path.name for path in Path().iterdir()] == ["mine.toml"]


def test_without_ray_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the other engine works: nothing imports it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    told = "--engine ray needs Ray, which is not installed; install it with pip install 'drcil[ray]'"
    assert refusal(capsys, "--engine", "ray") == told
    assert "ray" in BACKENDS and BACKENDS["local"](BackendRequest()).open([]) == 1


@needs_ray
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gpus-per-run", "1.5"], "--gpus-per-run takes a part of one GPU, such as 0.5, or whole ones, not 1.5"),
        (["--gpus-per-run", "0", "--device", "cuda"], "--device cuda needs --gpus-per-run above 0"),
        (["--cpus-per-run", "0"], "--cpus-per-run must be a number from 0.01 to 4096, not 0.0"),
        (["--ray-address", "ray://host:10001"], "not 'ray://host:10001'"),
        (["--ray-address", "host"], "--ray-address takes HOST:PORT, or 'auto'"),
    ],
)
def test_what_a_cluster_cannot_be_asked_for(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refusal(capsys, "--engine", "ray", *options)


@pytest.fixture
def port() -> Iterator[int]:
    """One at which someone listens who never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@needs_ray
def test_nobody_answers(port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ray_backend, "_ANSWER_SECONDS", 1.0)
    told = refusal(capsys, "--engine", "ray", "--ray-address", f"127.0.0.1:{port}")
    assert told == f"nothing at 127.0.0.1:{port} answers as Ray does; give another --ray-address"
    told = refusal(capsys, "--engine", "ray", "--ray-address", "127.0.0.1:1")
    assert told.startswith("no answer at 127.0.0.1:1; start Ray there with 'ray start --head'")


@given(have=st.integers(0, 64), take=st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0]))
def test_a_node_holds_what_fits(have: int, take: float) -> None:
    for runs in (Node("", "", have, 0).holds(take, 0), Node("", "", 1000, have).holds(1, take)):
        assert runs * take <= have + 1e-9 and have < (runs + 1) * take
    assert Node("", "", have, 0).holds(1, take) == 0


def test_threads_are_the_cpus_that_are_set_aside() -> None:
    if find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'drcil[ray]'")
    assert [BACKENDS["ray"](BackendRequest(cpus=cpus)).threads for cpus in (None, 0.5, 1.0, 2.5)] == [1, 1, 1, 2]


def test_what_a_node_has_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drcil.experiments.backends._SHARED_DISK_SECONDS", 0.0)
    mark, here = tmp_path / "mark", str(tmp_path)
    mark.write_text("as written")
    assert check_node({str(mark): "as written"}, here, versions()) is None
    for marks in ({str(mark): "another"}, {str(tmp_path / "missing"): "as written"}):
        told = f"does not see {tmp_path}; --out takes a directory on a disk that all nodes share"
        assert check_node(marks, here, versions()) == told
    assert check_node({}, "/nowhere", versions()) == "does not see /nowhere, where this command was given"
    told = f"has {versions()}, not drcil 9 with torch 9 as here"
    assert check_node({}, here, "drcil 9 with torch 9") == told


# Real clusters


class Small(NamedTuple):
    """A cluster that a test may do harm to."""

    address: str
    nodes: list[int]
    """The process of each node; the first one has no CPUs."""


@pytest.fixture(scope="module")
def small() -> Iterator[Small]:
    """Two nodes of one CPU each, beside a head without any."""
    # Short, for the names of sockets, and not where a cluster of the user is found.
    place = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    own = {**ALONE, "HOME": str(place), "RAY_TMPDIR": str(place)}
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "ray_cluster.py"), "0", "1", "1"]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place, env={**os.environ, **own}
    )
    try:
        assert program.stdout
        address, *nodes = program.stdout.readline().split()
        yield Small(address, [int(node) for node in nodes])
    finally:
        program.communicate()
        shutil.rmtree(place, ignore_errors=True)


def reproduce(small: Small, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "drcil.cli", "reproduce", "mine.toml", "--engine", "ray"]
    return subprocess.Popen(
        [*command, "--ray-address", small.address, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def under_way(suite: subprocess.Popen[str], *names: str) -> list[Path]:
    """The runs of these names, paused after an epoch, so that none finishes before the others have started."""
    runs = [Path("runs") / f"{name}-digits-b0-5-seed0" for name in names]
    paused: set[Path] = set()

    def pause_runs() -> bool:
        for run in set(runs) - paused:
            log = run / "events.jsonl"
            if log.exists() and b"EpochDone" in log.read_bytes():
                os.kill(process_of(run), signal.SIGSTOP)
                paused.add(run)
        return len(paused) == len(runs)

    try:
        wait_until(pause_runs, suite)
    except AssertionError as error:
        error.add_note(str(suite.communicate()))
        raise
    return runs


def process_of(run: Path) -> int:
    return last_process(run / "events.jsonl")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@needs_ray
@pytest.mark.slow
def test_a_request_that_no_node_can_serve(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    """And a directory that is another one on every node."""
    asked = ["--engine", "ray", "--ray-address", small.address]
    told = refusal(capsys, *asked, "--cpus-per-run", "3", "--gpus-per-run", "2")
    assert told.startswith("no node of the Ray cluster has 3 CPUs and 2 GPUs for a run: ")
    assert told.endswith("(127.0.0.1) has 1 CPU and 0 GPUs")
    told = refusal(capsys, *asked, "--out", "/proc/self/cwd/there")
    assert told.startswith("node ") and "(127.0.0.1) does not see /proc/self/cwd; --out takes a directory" in told


@needs_ray
@pytest.mark.slow
def test_what_is_lost_again_and_again_is_given_up(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray_backend, "_RETRY_DELAY_SECONDS", 0.0)

    def dies() -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def refuses() -> Any:
        raise UserError("not like this")

    ray_backend.connect(small.address)
    try:
        given_up = "lost 4 times, at last: its worker was killed"
        for act, told, tries in ((dies, given_up, 3), (refuses, "not like this", 0)):
            task = ray.remote(max_retries=0)(act)
            lost = RetriedTask(task.remote, lambda: True, tmp_path, tmp_path / act.__name__)
            assert str(lost.failure()).startswith(told)
            log = tmp_path / act.__name__
            assert (log.read_text().count("resumes from its last snapshot") if log.exists() else 0) == tries
        waiting = RetriedTask(ray.remote(num_cpus=9)(dies).remote, lambda: False, tmp_path, tmp_path / "log")
        assert waiting.failure() == "no node is left that can hold a run"
    finally:
        ray_backend.disconnect()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_run_goes_on_alone(small: Small, number: signal.Signals) -> None:
    # Longer than Ray takes to notice that the suite has ended.
    Path("mine.toml").write_text(SUITE.replace("epochs_scale = 0.2", "epochs_scale = 50"))
    suite = reproduce(small, "--quiet")
    runs = under_way(suite, "replay", "icarl")
    children = [process_of(run) for run in runs]
    for child in children:
        os.kill(child, signal.SIGCONT)
    suite.send_signal(number)
    _, error = suite.communicate()
    if number is not signal.SIGKILL:
        assert suite.returncode == 130
        assert error == "drcil: interrupted; run the same command again to continue\n"
        assert not any(is_running(child) for child in children)
    for child in children:
        wait_for_end(child)
    for run in runs:
        # A worker may still be on its way out.
        while _in_use(run):
            time.sleep(0.1)
        assert not (run / "result.json").exists()


def _in_use(run: Path) -> bool:
    try:
        with file_lock(run / ".lock", "in use"):
            return False
    except UserError:
        return True


@needs_ray
@pytest.mark.slow
def test_a_suite_that_loses_a_worker_and_a_node_ends_as_on_one_machine(small: Small) -> None:
    """The last test: it leaves one node."""
    assert main(["reproduce", "mine.toml", "--threads", "1", "--quiet", "--out", "outright"]) == 0
    suite = reproduce(small)
    first, second = under_way(suite, "replay", "icarl")
    children = [process_of(run) for run in (first, second)]
    workers = [parent_of(child) for child in children]
    raylets = [parent_of(worker) for worker in workers]
    assert set(raylets) == set(small.nodes[1:]), "the runs are not spread over the nodes"
    os.kill(workers[0], signal.SIGKILL)
    os.kill(raylets[1], signal.SIGKILL)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
    out, error = suite.communicate()
    assert (suite.returncode, error) == (0, ""), out
    for run in (first, second):
        assert "resumes from its last snapshot" in Path(f"suites/mine/logs/{run.name}.log").read_text()
    for run in sorted(Path("outright/runs").iterdir()):
        assert_same(outcome(run), outcome(Path("runs") / run.name))
    assert len(list(Path("runs").iterdir())) == 4
    assert "4 of 4 runs done" in out
