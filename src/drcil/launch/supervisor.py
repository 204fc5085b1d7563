"""Starts the processes of one run on this machine, watches over them, and ends all when one has ended early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..errors import FaultError, UserError
from .meeting import SPOKEN
from .member import VARIABLE

STOPPED = 130
"""The exit code of a process that was interrupted, and has said so."""
_GLANCE = 0.1
_PATIENCE = 10.0
"""Seconds that processes have to end by themselves once another has; then they are killed."""


def wanted_processes(devices: int | str, device: str) -> int:
    """How many processes to start, each with a device of its own; or a sentence about what this machine lacks."""
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else 0
    if devices == "auto":
        return max(1, gpus)
    present, what = (gpus, "GPU") if gpus else (_cores(), "core")
    if device == "mps" or (device == "auto" and not gpus and torch.backends.mps.is_available()):
        present, what = 1, "GPU"
    if int(devices) > present:
        raise UserError(
            f"--devices {devices} is more than this machine has: {present} {what}{'' if present == 1 else 's'}"
        )
    return int(devices)


def _cores() -> int:
    """Those that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def supervise(arguments: Sequence[str], size: int) -> int:
    """Carry out a command in so many processes that work as one; the exit code."""
    # The store is here, so that it outlives every one of them.
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    members = [_started(arguments, rank, size, store.port) for rank in range(size)]
    try:
        while all(member.poll() is None for member in members):
            time.sleep(_GLANCE)
        _end(members, _PATIENCE if any(member.poll() for member in members) else None)
    except KeyboardInterrupt:
        for member in members:
            member.terminate()
        _end(members, _PATIENCE)
        if members[0].returncode != STOPPED:
            raise
        # The first of them has said how to go on.
        return STOPPED
    finally:
        for member in members:
            with suppress(OSError):
                member.kill()
            member.wait()
    failed = [(rank, member.returncode) for rank, member in enumerate(members) if member.returncode]
    if not failed:
        return 0
    if not store.check([SPOKEN]):
        raise FaultError(f"{_ended(*failed[0], size)}; what is finished is kept, and 'drcil resume' goes on")
    # What a process said of itself, not that it was ended with another.
    return next((code for _, code in failed if code > 0), 1)


def _started(arguments: Sequence[str], rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "drcil.cli.child", *arguments],
        # Closed when this process is gone, however it went; then the others go too.
        stdin=subprocess.PIPE,
        # A session of its own: the interrupt key is for this process.
        start_new_session=True,
        env={**os.environ, VARIABLE: f"{rank}/{size}@{port}"},
    )


def _end(members: Sequence[subprocess.Popen[bytes]], patience: float | None) -> None:
    """Wait for all; those that take longer are killed, for they wait for one that has gone."""
    end = None if patience is None else time.monotonic() + patience
    while any(member.poll() is None for member in members):
        if end is None and any(member.poll() for member in members):
            end = time.monotonic() + _PATIENCE
        if end is not None and time.monotonic() > end:
            for member in members:
                member.kill()
        time.sleep(_GLANCE)


def _ended(rank: int, code: int, size: int) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"process {rank + 1} of {size} {how}"
