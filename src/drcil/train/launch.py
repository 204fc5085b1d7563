"""Starts the processes of one run and joins their process group.

Processes of ``--devices``, ``torchrun`` and ``srun`` join in the same way, by the environment variables of
``torch.distributed`` (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). The store of the group also decides which of them
prints why the run ends.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import start_processes

from .. import __version__, distributed
from ..errors import FaultError, UserError
from ..process import (
    COMMAND,
    LAUNCHER,
    LostProcessError,
    ProcessesEnded,
    ProcessInfo,
    find_process_info,
    report_through,
)
from ..settings import EngineSettings

INTERRUPTED = 130
"""Exit code of a process that was interrupted and has printed a message."""
_REPORTED = "drcil/reported"
"""Key of the store that counts the processes that wanted to print why the run ends."""
_PORT = "drcil/port"
"""Key of torchrun's store with the port of the main process's store."""
_RETRY_SECONDS = 0.05
_GRACE_SECONDS = 10.0
"""Time for processes to end by themselves after another has ended; then they are killed."""
_REPORT_SECONDS = 5.0
"""Time for a lost process to print why it ends, before those that miss it print that it is lost."""


def number_of_processes(devices: int | str, device: str) -> int:
    """How many processes to start, each with its own device; a UserError if the machine has fewer devices."""
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else 0
    if devices == "auto":
        return max(1, gpus)
    available, unit = (gpus, "GPU") if gpus else (_cores(), "core")
    if device == "mps" or (device == "auto" and not gpus and torch.backends.mps.is_available()):
        available, unit = 1, "GPU"
    if int(devices) > available:
        raise UserError(
            f"--devices {devices} is more than this machine has: {available} {unit}{'' if available == 1 else 's'}"
        )
    return int(devices)


def _cores() -> int:
    """The number of cores that this process may use, if the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_process(threads: int | None) -> int | None:
    """The setting; by default the processes of a machine share its cores. None: torch's default."""
    if threads is not None or distributed.size() == 1:
        return threads
    processes = distributed.all_gather_object(platform.node()).count(platform.node())
    return max(1, (os.cpu_count() or 1) // processes)


@contextmanager
def process_group(settings: EngineSettings) -> Iterator[None]:
    """Within the block this process works with the other processes of its run, if there are any.

    If the settings ask for several processes and no launcher has started them, they are started here. This process
    waits for them and ends with ``ProcessesEnded``.
    """
    info = find_process_info()
    if info is not None:
        with join_group(info, settings.timeout, settings.device):
            yield
        return
    size = 1 if settings.devices == 1 else number_of_processes(settings.devices, settings.device)
    if size > 1:
        raise ProcessesEnded(launch(COMMAND.get(), size))
    yield


def launch(command: Callable[[], int], size: int) -> int:
    """Run a command in ``size`` processes; the exit code."""
    # Here and not in a child, so that it outlives all of them.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        LAUNCHER: "drcil",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        # So that no child creates another store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        # DistributedDataParallel warns that no parameter is unused.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    context: Any = start_processes(_run_child, (command,), size, join=False, start_method="spawn")
    children: list[BaseProcess] = context.processes
    try:
        _wait_for_all(children)
    except KeyboardInterrupt:
        for child in children:
            child.terminate()
        _wait_for_all(children, _GRACE_SECONDS)
        if children[0].exitcode != INTERRUPTED:
            raise
        # The first child has printed how to resume.
        return INTERRUPTED
    finally:
        for child in children:
            child.kill()
            child.join()
    codes = [child.exitcode or 0 for child in children]
    if not any(codes):
        return 0
    if not store.check([_REPORTED]):
        rank = next(rank for rank, code in enumerate(codes) if code)
        raise FaultError(f"{_describe_end(rank, codes)}; finished work is kept, continue with 'drcil resume'")
    # The code of a process that ended by itself, not that of one that was killed after it.
    return next((code for code in codes if code > 0), 1)


def _wait_for_all(children: Sequence[BaseProcess], seconds: float | None = None) -> None:
    """Wait for all; once one has failed, the others are killed after a while: they may wait for it."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while alive := [child.sentinel for child in children if child.exitcode is None]:
        if deadline is None and any(child.exitcode for child in children):
            deadline = time.monotonic() + _GRACE_SECONDS
        ended = wait(alive, None if deadline is None else max(0.0, deadline - time.monotonic()))
        if not ended:
            for child in children:
                child.kill()


def _describe_end(rank: int, codes: Sequence[int]) -> str:
    code = codes[rank]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"process {rank + 1} of {len(codes)} {how}"


def _run_child(rank: int, command: Callable[[], int]) -> None:
    """Run the command as process ``rank``."""
    if hasattr(os, "setsid"):
        # The interrupt key is for the parent, which then stops its children.
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.exit(command())


def _end_with_parent() -> None:
    """Wait for the end of the parent process, then interrupt this process; if that takes long, end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


@contextmanager
def join_group(info: ProcessInfo, timeout: float, device: str = "auto") -> Iterator[None]:
    """Within the block this process is in a process group with the others of its run.

    ``timeout``: seconds to wait for another process. ``device``: each process takes a GPU with ``cuda``, and with
    ``auto`` if there are GPUs.
    """
    patience = timedelta(seconds=timeout)
    uses_gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if uses_gpus:
        _select_gpu(info.local_rank)
    os.environ |= info.variables()
    output = _Output(is_silent=info.rank > 0)
    try:
        store, _, _ = next(rendezvous("env://", info.rank, info.size, timeout=patience))
        if info.launcher == "torchrun":
            store = _fresh_store(store, info, patience)
        backend = "cpu:gloo,cuda:nccl" if uses_gpus else "gloo"
        report_through(lambda error, is_interrupt: _claim_report(store, info.rank, error, is_interrupt, output))
        distributed.init_group(backend, store=store, rank=info.rank, world_size=info.size, timeout=patience)
    except (RuntimeError, ValueError, OSError) as error:
        output.restore_stderr()
        raise FaultError(
            f"the {info.size} processes that {info.launcher} started did not connect at "
            f"{info.address}:{info.port} within {timeout:g} seconds ({_first_line(error)})"
        ) from error
    with lost_processes_as_errors(timeout):
        _require_equal_versions()
        yield
        # Not after an error: it would wait for processes that wait for this one.
        dist.barrier()
    distributed.destroy_group()


def _fresh_store(store: Any, info: ProcessInfo, patience: timedelta) -> Any:
    """The store below a prefix that only the current processes know.

    When torchrun restarts processes, it keeps its store with the addresses of lost ones, and not all machines count
    the restart. So the main process publishes the prefix through a separate store, which ends with it; the port of an
    earlier one cannot be connected to.
    """
    deadline = time.monotonic() + patience.total_seconds()
    if info.rank == 0:
        session = TCPStore(info.address, 0, is_master=True, timeout=patience, wait_for_workers=False)
        session.set("prefix", secrets.token_hex(8))
        store.set(_PORT, str(session.port))
    else:
        session = _connect_to_session(store, info.address, deadline)
    # All processes have read the prefix before the main process lets go of its store.
    prefix = session.get("prefix").decode()
    session.add("readers", 1)
    while info.rank == 0 and session.add("readers", 0) < info.size:
        if time.monotonic() > deadline:
            raise RuntimeError("some processes are missing")
        time.sleep(_RETRY_SECONDS)
    return PrefixStore(prefix, store)


def _connect_to_session(store: Any, address: str, deadline: float) -> Any:
    while True:
        try:
            port = int(store.get(_PORT))
            return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


@contextmanager
def lost_processes_as_errors(timeout: float) -> Iterator[None]:
    """Within the block the loss of another process raises a ``LostProcessError``."""
    try:
        yield
    except RuntimeError as error:
        is_lost = any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "Connection closed"))
        if not (is_lost or isinstance(error, dist.DistError)):
            raise
        raise LostProcessError(
            f"another process of this run has ended, or has not answered for {timeout:g} seconds; finished work is "
            f"kept, continue with 'drcil resume' ({_first_line(error)})"
        ) from error


def _claim_report(store: Any, rank: int, error: object, is_interrupt: bool, output: _Output) -> bool:
    """Whether this process prints why the run ends: the first that asks, or at an interrupt the main process."""
    if is_interrupt:
        is_reporter = rank == 0
    else:
        try:
            if isinstance(error, LostProcessError):
                with suppress(RuntimeError):
                    store.wait([_REPORTED], timedelta(seconds=_REPORT_SECONDS))
            is_reporter = int(store.add(_REPORTED, 1)) == 1
        except RuntimeError:
            # Without a store, which ended with another process, no other process can be asked.
            is_reporter = rank == 0
    if is_reporter:
        output.restore_stderr()
    return is_reporter


class _Output:
    """Standard output and error of this process."""

    def __init__(self, is_silent: bool) -> None:
        """``is_silent``: discard what is printed from now on, by libraries too."""
        self._stderr: int | None = None
        if is_silent:
            sys.stdout.flush(), sys.stderr.flush()
            self._stderr = os.dup(2)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1), os.dup2(null, 2)
            os.close(null)

    def restore_stderr(self) -> None:
        if self._stderr is not None:
            sys.stderr.flush()
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._stderr = None


def _select_gpu(local_rank: int) -> None:
    """Compute on the GPU of this number, or on the only one that is visible to this process."""
    gpus = torch.cuda.device_count()
    if gpus > 1 and local_rank >= gpus:
        raise UserError(f"this machine has {gpus} GPUs, but process {local_rank + 1} was started on it")
    torch.cuda.set_device(local_rank if gpus > 1 else 0)


def _require_equal_versions() -> None:
    versions = {"drcil": __version__, "torch": torch.__version__, "Python": platform.python_version()}
    for rank, others in enumerate(distributed.all_gather_object(versions)):
        for name, version in versions.items():
            if others[name] != version:
                raise UserError(
                    f"the processes of a run must have the same versions, but process {rank} has {name} {others[name]} "
                    f"and process {distributed.rank()} has {version}"
                )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
