"""A cluster of Ray: reaching it without its chatter, its nodes, and whether runs can be carried out on them."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk import temporary_name, write_bytes
from ..errors import UserError, shortened
from . import node as at_node

_LOCAL, _AUTO = "local", "auto"
"""Addresses: Ray is started here for as long as it is needed; the cluster that this machine belongs to."""
_KNOCK = 5.0
"""Seconds in which a port has to open."""
_ANSWER = 60.0
"""Seconds in which Ray has to answer, and nodes to look around."""
_STORE = 100 * 2**20
"""Bytes for objects that processes share, of which there are hardly any."""
_KNOCKING = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='critical'); ray.shutdown()"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Without clusters, as it is by default on these systems, what Ray starts listens on the loopback address only."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, or a part of one."""

    identity: str
    name: str
    cpus: float
    gpus: float

    def holds(self, cpus: float, gpus: float) -> int:
        """How many runs at a time that take so much each."""
        by_gpu = _times(self.gpus, gpus) if gpus else sys.maxsize
        return min(_times(self.cpus, cpus), by_gpu)


def reach(address: str | None) -> None:
    """Connect this process to the cluster at an address; without one, to that of RAY_ADDRESS, or start Ray here."""
    address = address or os.environ.get("RAY_ADDRESS") or _LOCAL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == _LOCAL:
        os.environ.setdefault(_LOOPBACK, "0")
        options |= {"include_dashboard": False, "object_store_memory": _STORE}
    else:
        _require_answer(address)
    try:
        with _own_signals():
            import ray

            ray.init(address, **options)
    except Exception as error:
        raise UserError(f"Ray cannot be used at {address}: {reason(error)}") from error


def nodes() -> list[Node]:
    """Those that are alive."""
    import ray

    told: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [_node(one) for one in told if one["Alive"]]


def leave() -> None:
    """Disconnect, if there was a connection; what was started for this process ends, and what it has left running."""
    if "ray" not in sys.modules:
        return
    import ray

    with _own_signals():
        ray.shutdown()


def require_fit(among: Sequence[Node], places: Sequence[Path]) -> None:
    """All these nodes see the directories, and have the same program."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, max_retries=0)(at_node.hindrance)
    with ExitStack() as stack:
        marks = dict(stack.enter_context(_mark(place)) for place in {_existing(place) for place in places})
        asked = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.identity, soft=False)).remote(
                marks, os.getcwd(), at_node.versions()
            ): node
            for node in among
        }
        ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER)
        for answer, node in asked.items():
            try:
                hindrance = ray.get(answer, timeout=0)
            except Exception as error:
                hindrance = f"cannot carry out runs: {reason(error)}"
            if hindrance is not None:
                raise UserError(f"node {node.name} {hindrance}")


def reason(error: Exception) -> str:
    """The last line of what Ray says, or of what went wrong on a node."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, UserError):
        return str(cause)
    return shortened(f"{type(cause).__name__}: {lines[-1]}" if lines else type(cause).__name__)


def _node(told: dict[str, Any]) -> Node:
    resources = told["Resources"]
    name = f"{told['NodeManagerHostname']} ({told['NodeName']})"
    return Node(told["NodeID"], name, resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def _times(have: float, take: float) -> int:
    """How often something can be taken; Ray counts in ten thousandths."""
    return round(have * 10_000) // max(1, round(take * 10_000))


def _require_answer(address: str) -> None:
    """Ray itself would go on knocking for minutes, and not hear the interrupt key."""
    nobody = f"nobody answers at {address}; start Ray there with 'ray start --head', or give another --ray-address"
    if address != _AUTO:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or "/" in host:
            raise UserError(
                f"--ray-address takes HOST:PORT, or '{_AUTO}' for the cluster that this machine belongs to, "
                f"not '{shortened(address)}'"
            )
        if not any(_opens(name, int(port)) for name in _names(host.strip("[]"))):
            raise UserError(nobody)
    command = [sys.executable, "-P", "-c", _KNOCKING, address]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        raise UserError(f"nothing at {address} answers as Ray does; give another --ray-address") from None
    if done.returncode:
        if address == _AUTO and "ConnectionError" in done.stderr:
            raise UserError("this machine belongs to no Ray cluster; start one with 'ray start --head'")
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise UserError(f"Ray cannot be used at {address}: {shortened(said[-1])}")


def _names(host: str) -> list[str]:
    """Where Ray looks for it: behind the loopback address it takes the machine's own."""
    from ray.util import get_node_ip_address

    own = [get_node_ip_address()] if host in ("localhost", "127.0.0.1", "::1") else []  # type: ignore[no-untyped-call]
    return [host, *own]


def _opens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_KNOCK).close()
    except OSError:
        return False
    return True


@contextmanager
def _mark(place: Path) -> Iterator[tuple[str, str]]:
    """Within the block there is a file that only those see who share the directory."""
    file, content = temporary_name(place / "shared"), secrets.token_hex()
    write_bytes(file, content.encode())
    try:
        yield str(file), content
    finally:
        with suppress(OSError):
            file.unlink()


def _existing(place: Path) -> Path:
    """The directory in which there will be one."""
    place = place.absolute()
    return next(path for path in (place, *place.parents) if path.is_dir())


@contextmanager
def _own_signals() -> Iterator[None]:
    """Within the block Ray may take over signals; after it they are ours again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
