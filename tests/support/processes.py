"""Other processes in tests: waited for by events, killed at events, never by the clock.

What never happens is ended by the timeout of the test (``timeout`` in pyproject.toml).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
"""Children of a process without threads: a fork of pytest itself may inherit a lock that nobody releases."""
FORKS.set_forkserver_preload(["drcil.cli.learn", "drcil.learner"])


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds; it is an error if the process that should bring it about ends before."""
    while not condition():
        if process.poll() is not None:
            assert condition(), f"the process ended with code {process.returncode} before the condition held"
            return
        time.sleep(0.01)


def wait_for_text(path: Path, text: str, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Wait until a process has written some text to a file."""
    wait_until(lambda: path.exists() and text in path.read_text(errors="replace"), process)


def is_running(process: int) -> bool:
    """Whether a process, of whatever parent, has not ended yet."""
    return not _ended(process, 0)


def wait_for_end(process: int) -> None:
    """Wait until a process, of whatever parent, has ended."""
    _ended(process, None)


def _ended(process: int, seconds: float | None) -> bool:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def killed_before(step: int, act: Callable[..., object], *arguments: object) -> bool:
    """Let another process act, and kill it before a step: a rename, a removal, a new directory. False: it ended first.

    The function is passed by name, so it has to be one of a module; the process is in the directory of pytest.
    """
    child = FORKS.Process(target=_act, args=(step, act, arguments))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode != 0


def _act(step: int, act: Callable[..., object], arguments: tuple[object, ...]) -> None:
    steps = 0

    def count(event: str, given: tuple[object, ...]) -> None:
        nonlocal steps
        if event in ("os.rename", "os.rmdir", "os.remove", "os.mkdir"):
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.dont_write_bytecode = True  # It would be a step.
    sys.addaudithook(count)
    act(*arguments)


def last_process(events: Path) -> int:
    started = [line for line in events.read_text().splitlines() if '"Started"' in line]
    return int(json.loads(started[-1])["process"])
