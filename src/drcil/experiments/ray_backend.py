"""Backend for Ray clusters: connection, node checks, retries."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, shortened
from ..files import append_line, temporary_name, write_bytes
from ..registry import VARIABLE, named_plugins
from ..runs.run_files import run_lock
from ..settings import JOBS
from . import backends as at_node
from .backends import BACKENDS, BackendRequest

if TYPE_CHECKING:
    from ray import ObjectRef

    from .backends import ExitStatus


_FORWARDED = ("DRCIL_", "PYTHONPATH")
"""Prefixes of the environment variables that are forwarded to the nodes."""
_NODE_POLL_SECONDS = 10.0
"""Time between two checks of the nodes."""


@BACKENDS.register("ray")
class Ray:
    """A Ray task for each run, which starts a child process on a node with free resources."""

    def __init__(self, request: BackendRequest) -> None:
        if find_spec("ray") is None:
            raise UserError("--engine ray needs Ray, which is not installed; install it with pip install 'drcil[ray]'")
        gpus = request.gpus
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise UserError(f"--gpus-per-run takes a part of one GPU, such as 0.5, or whole ones, not {gpus:g}")
        if gpus == 0 and request.device == "cuda":
            raise UserError("--device cuda needs --gpus-per-run above 0")
        self._request, self._cpus, self._gpus = request, request.cpus or 1.0, gpus or 0.0
        self._fits, self._checked_at = True, 0.0

    @property
    def threads(self) -> int:
        """One per reserved CPU."""
        return max(1, int(self._cpus))

    def open(self, directories: Sequence[Path]) -> int:
        """Connect and check the nodes; returns how many runs the cluster can hold at a time."""
        connect(self._request.address)
        available = nodes()
        if self._request.gpus is None and self._request.device != "cpu":
            self._gpus = 1.0 if any(node.gpus >= 1 for node in available) else 0.0
        usable = [node for node in available if node.holds(self._cpus, self._gpus)]
        if not usable:
            largest = "; ".join(f"{node.name} has {_amount(node.cpus, node.gpus)}" for node in _largest(available))
            raise UserError(f"no node of the Ray cluster has {_amount(self._cpus, self._gpus)} for a run: {largest}")
        require_fit(usable, directories)
        return self._request.jobs or min(int(JOBS.most), sum(node.holds(self._cpus, self._gpus) for node in usable))

    def start(self, directory: Path, log: Path) -> RetriedTask:
        import ray

        from .backends import RayJob, run_job

        # Some versions of Ray do not hide GPUs that are not reserved.
        gpu_variables = {} if self._gpus else {"CUDA_VISIBLE_DEVICES": ""}
        job = RayJob(str(directory.absolute()), str(log.absolute()), os.getcwd(), {**_environment(), **gpu_variables})
        # Ray's own retries have no bound when memory runs out.
        task = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, scheduling_strategy="SPREAD")(
            run_job
        )
        return RetriedTask(lambda: task.remote(job), self._has_room, directory, log)

    def close(self) -> None:
        disconnect()

    def _has_room(self) -> bool:
        """Whether a node can hold a run, as of the last check."""
        if time.monotonic() > self._checked_at + _NODE_POLL_SECONDS:
            self._fits = any(node.holds(self._cpus, self._gpus) for node in nodes())
            self._checked_at = time.monotonic()
        return self._fits


def _environment() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
    return {**variables, VARIABLE: os.pathsep.join(named_plugins())}


def _largest(candidates: Sequence[Node]) -> list[Node]:
    """The node with the most CPUs, and the one with the most GPUs if it is another."""
    by_cpus = max(candidates, key=lambda node: (node.cpus, node.gpus))
    by_gpus = max(candidates, key=lambda node: (node.gpus, node.cpus))
    return [by_cpus] if by_gpus == by_cpus else [by_cpus, by_gpus]


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'} and {gpus:g} GPU{'' if gpus == 1 else 's'}"


_LOCAL, _AUTO = "local", "auto"
"""Addresses: start Ray on this machine; the cluster that this machine belongs to."""
_PORT_SECONDS = 5.0
"""Time in which a port must open."""
_ANSWER_SECONDS = 60.0
"""Time in which Ray must answer, and nodes must finish their checks."""
_STORE = 100 * 2**20
"""Bytes of Ray's object store, which is hardly used."""
_PROBE = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='critical'); ray.shutdown()"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, as is the default on these systems, Ray listens on the loopback address only."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, or a part of one."""

    identity: str
    name: str
    cpus: float
    gpus: float

    def holds(self, cpus: float, gpus: float) -> int:
        """How many runs with these resources fit at a time."""
        by_gpu = _times(self.gpus, gpus) if gpus else sys.maxsize
        return min(_times(self.cpus, cpus), by_gpu)


def connect(address: str | None) -> None:
    """Connect this process to the cluster at an address; without one, to RAY_ADDRESS, or start Ray on this machine."""
    address = address or os.environ.get("RAY_ADDRESS") or _LOCAL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == _LOCAL:
        os.environ.setdefault(_LOOPBACK, "0")
        options |= {"include_dashboard": False, "object_store_memory": _STORE}
    else:
        _require_answer(address)
    try:
        with _restoring_signals():
            import ray

            ray.init(address, **options)
    except Exception as error:
        raise UserError(f"Ray cannot be used at {address}: {error_text(error)}") from error


def nodes() -> list[Node]:
    """The nodes that are alive."""
    import ray

    descriptions: list[dict[str, Any]] = ray.nodes()
    return [_node(description) for description in descriptions if description["Alive"]]


def disconnect() -> None:
    """Disconnect from Ray, if connected; this also stops a Ray that was started for this process."""
    if "ray" not in sys.modules:
        return
    import ray

    with _restoring_signals():
        ray.shutdown()


def require_fit(candidates: Sequence[Node], paths: Sequence[Path]) -> None:
    """Check that all these nodes see the directories and have the same versions."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check = ray.remote(num_cpus=0, max_retries=0)(at_node.check_node)
    with ExitStack() as stack:
        marks = dict(stack.enter_context(_mark(directory)) for directory in {_existing(path) for path in paths})
        checks = {
            check.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.identity, soft=False)).remote(
                marks, os.getcwd(), at_node.versions()
            ): node
            for node in candidates
        }
        ray.wait(list(checks), num_returns=len(checks), timeout=_ANSWER_SECONDS)
        for answer, node in checks.items():
            try:
                reason = ray.get(answer, timeout=0)
            except Exception as error:
                reason = f"cannot execute runs: {error_text(error)}"
            if reason is not None:
                raise UserError(f"node {node.name} {reason}")


def error_text(error: Exception) -> str:
    """The last line of an error of Ray, or of an error on a node."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, UserError):
        return str(cause)
    return shortened(f"{type(cause).__name__}: {lines[-1]}" if lines else type(cause).__name__)


def _node(description: dict[str, Any]) -> Node:
    resources = description["Resources"]
    name = f"{description['NodeManagerHostname']} ({description['NodeName']})"
    return Node(description["NodeID"], name, resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def _times(available: float, required: float) -> int:
    """How often an amount fits; Ray counts in units of 1/10,000."""
    return round(available * 10_000) // max(1, round(required * 10_000))


def _require_answer(address: str) -> None:
    """Check that Ray answers at an address. Ray itself would retry for minutes and ignore Ctrl-C."""
    no_answer = f"no answer at {address}; start Ray there with 'ray start --head', or give another --ray-address"
    if address != _AUTO:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or "/" in host:
            raise UserError(
                f"--ray-address takes HOST:PORT, or '{_AUTO}' for the cluster that this machine belongs to, "
                f"not '{shortened(address)}'"
            )
        if not any(_opens(name, int(port)) for name in _names(host.strip("[]"))):
            raise UserError(no_answer)
    command = [sys.executable, "-P", "-c", _PROBE, address]
    try:
        probe = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"nothing at {address} answers as Ray does; give another --ray-address") from None
    if probe.returncode:
        if address == _AUTO and "ConnectionError" in probe.stderr:
            raise UserError("this machine belongs to no Ray cluster; start one with 'ray start --head'")
        lines = [line for line in probe.stderr.splitlines() if line.strip()] or [f"exit code {probe.returncode}"]
        raise UserError(f"Ray cannot be used at {address}: {shortened(lines[-1])}")


def _names(host: str) -> list[str]:
    """The hosts that Ray tries: for a loopback address also the address of this machine."""
    from ray.util import get_node_ip_address

    local_names = [get_node_ip_address()] if host in ("localhost", "127.0.0.1", "::1") else []
    return [host, *local_names]


def _opens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_PORT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def _mark(directory: Path) -> Iterator[tuple[str, str]]:
    """Within the block, the directory has a file by which nodes recognise that they share it."""
    file, content = temporary_name(directory / "shared"), secrets.token_hex()
    write_bytes(file, content.encode())
    try:
        yield str(file), content
    finally:
        with suppress(OSError):
            file.unlink()


def _existing(directory: Path) -> Path:
    """The nearest existing parent of a directory, or the directory itself."""
    directory = directory.absolute()
    return next(path for path in (directory, *directory.parents) if path.is_dir())


@contextmanager
def _restoring_signals() -> Iterator[None]:
    """Restore the signal handlers after the block: Ray replaces them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


_RETRIES = 3
_LOSSES = {
    "NodeDiedError": "its node died",
    "WorkerCrashedError": "its worker was killed",
    "OutOfMemoryError": "its node ran out of memory",
}
"""Short messages for Ray's errors."""
_RETRY_DELAY_SECONDS = 3.0
"""Time before another attempt: a process whose parent died ends within two seconds."""
_LOCKED_SECONDS = 120.0
"""Time for which a process on a lost node may still lock the run."""
_STOP_SECONDS = 40.0
"""Time in which a worker must stop its process, before both are killed."""
_RETRY_POLL_SECONDS = 0.2


class RetriedTask:
    """A run as a Ray task, which is submitted again if its worker or node is lost."""

    def __init__(
        self, submit: Callable[[], ObjectRef[ExitStatus]], has_room: Callable[[], bool], directory: Path, log: Path
    ) -> None:
        """``has_room``: whether a node is left that can hold the run."""
        self._submit, self._has_room, self._directory, self._log = submit, has_room, directory, log
        self._task, self._retries = submit(), 0
        self._lost = 0.0
        """When the last attempt was lost; 0 unless another attempt is due."""
        self._over = False
        self._failure: str | None = None

    def running(self) -> bool:
        import ray

        if self._over:
            return False
        if self._lost:
            self._try_again()
        elif ray.wait([self._task], timeout=0)[0]:
            self._take()
        elif not self._has_room():
            self._end("no node is left that can hold a run")
            ray.cancel(self._task)
        return not self._over

    def failure(self) -> str | None:
        while self.running():
            time.sleep(_RETRY_POLL_SECONDS)
        return self._failure

    def ask_to_stop(self) -> None:
        import ray

        if not self._over and not self._lost:
            ray.cancel(self._task)

    def close(self) -> None:
        """Wait for the end; a worker that does not stop is killed together with its process."""
        import ray

        if self._over:
            return
        self._over = True
        if not self._lost and not ray.wait([self._task], timeout=_STOP_SECONDS)[0]:
            ray.cancel(self._task, force=True)
            ray.wait([self._task], timeout=_RETRY_DELAY_SECONDS)
        deadline = time.monotonic() + _RETRY_DELAY_SECONDS
        while not self._free() and time.monotonic() < deadline:
            time.sleep(_RETRY_POLL_SECONDS)

    def _take(self) -> None:
        """Handle the result of a finished attempt."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            ending = ray.get(self._task)
        except RayTaskError as error:
            self._end(error_text(error))
        except RayError as error:
            self._lose(_LOSSES.get(type(error).__name__) or error_text(error))
        else:
            if ending.killed:
                self._lose(str(ending.failure))
            else:
                self._end(ending.failure)

    def _lose(self, reason: str) -> None:
        if self._retries == _RETRIES:
            self._end(f"lost {self._retries + 1} times, at last: {reason}")
            return
        self._lost = time.monotonic()
        with suppress(UserError):
            append_line(self._log, f"lost: {reason}; resumes from its last snapshot", root=self._log.parent.parent)

    def _try_again(self) -> None:
        """Submit the task again when no process locks the run any more."""
        since = time.monotonic() - self._lost
        if since < _RETRY_DELAY_SECONDS:
            return
        if self._free():
            self._retries, self._lost = self._retries + 1, 0.0
            self._task = self._submit()
        elif since > _LOCKED_SECONDS:
            self._end(f"lost, and {self._directory} is still in use; stop the process that uses it")

    def _free(self) -> bool:
        try:
            with run_lock(self._directory):
                return True
        except UserError:
            return False

    def _end(self, failure: str | None) -> None:
        self._over, self._failure = True, failure
