"""Processes that share a run meet: they agree on what they are, exchange what they compute, and one of them speaks."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from .. import __version__
from ..errors import FaultError, UserError
from ..team import Team
from .member import Member
from .session import open_session

SPOKEN = "drcil/spoken"
"""The entry of the store that says whether a process has told the user why all of them end."""
_PATIENCE = 5.0
"""Seconds that those who lost another process leave to it to say why."""


class LostError(FaultError):
    """Another process has gone, or does not answer."""


class Meeting:
    """The processes of a run, as one of them knows them."""

    def __init__(self, member: Member, store: Any) -> None:
        self.member, self._store = member, store

    def may_speak(self, patience: float = 0.0) -> bool:
        """Whether this process is the one that tells the user what happened: the first that asks.

        Who only noticed that another has gone waits a while for that one's own words.
        """
        with suppress(Exception):
            end = time.monotonic() + patience
            while time.monotonic() < end and not self._store.check([SPOKEN]):
                time.sleep(0.1)
            # The store's own adding up, because only one can be the first.
            return int(self._store.add(SPOKEN, 1)) == 1
        # Without a store nobody else can be asked: then the first process speaks.
        return self.member.rank == 0


_current: Meeting | None = None


def current_meeting() -> Meeting | None:
    return _current


@contextmanager
def meeting(member: Member, timeout: float, device: str = "auto") -> Iterator[Team]:
    """Within the block this process works with the others; ``timeout``: seconds to wait for one of them.

    ``device``: what they compute on, ``cuda`` and ``auto`` where there is one: each on a GPU of its own.
    """
    global _current
    patience = timedelta(seconds=timeout)
    on_gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if on_gpus:
        _take_gpu(member.local)
    try:
        store = _store(member, patience)
        _current = Meeting(member, store)
        if member.rank != 0:
            _hush()
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=member.rank, world_size=member.size, timeout=patience)
    except (RuntimeError, ValueError, OSError) as error:
        raise FaultError(
            f"the {member.size} processes that {member.launcher} started did not come together at "
            f"{member.address}:{member.port} within {timeout:g} seconds ({_first_line(error)})"
        ) from error
    team = Team.current()
    with telling_losses(timeout):
        _require_alike(team)
        yield team
    # Who fails goes without a farewell: it would wait for those that wait for it.
    dist.destroy_process_group()


@contextmanager
def telling_losses(timeout: float) -> Iterator[None]:
    """Within the block it is told in a sentence that another process has gone."""
    try:
        yield
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        raise LostError(
            f"another process of this run has ended, or has not answered for {timeout:g} seconds; what is finished is "
            f"kept, and 'drcil resume' goes on ({_first_line(error)})"
        ) from error


def speaks(sentence_of_loss: bool) -> bool:
    """Whether this process tells the user why it ends; alone it always does."""
    return _current is None or _current.may_speak(_PATIENCE if sentence_of_loss else 0.0)


def _store(member: Member, patience: timedelta) -> Any:
    if member.launcher == "torchrun":
        # Torch knows whether its agent keeps the store.
        store, _, _ = next(rendezvous("env://", member.rank, member.size, timeout=patience))
        return PrefixStore(open_session(store, member.rank, member.size, patience), store)
    leads = member.rank == 0 and member.launcher != "drcil"
    return TCPStore(member.address, member.port, member.size, leads, timeout=patience, wait_for_workers=False)


def _take_gpu(local: int) -> None:
    """Compute on the GPU of this number, or on the only one that the launcher lets this process see."""
    present = torch.cuda.device_count()
    if present > 1 and local >= present:
        raise UserError(f"this machine has {present} GPUs, but process {local + 1} was started on it")
    torch.cuda.set_device(local if present > 1 else 0)


def _require_alike(team: Team) -> None:
    """All processes run the same programs."""
    own = {"drcil": __version__, "torch": torch.__version__, "Python": platform.python_version()}
    for rank, other in enumerate(team.everyone(own)):
        for name, version in own.items():
            if other[name] != version:
                raise UserError(
                    f"the processes of a run must have the same versions, but process {rank} has {name} {other[name]} "
                    f"and process {team.rank} has {version}"
                )


def _hush() -> None:
    """Let this process print nothing more; ``raise_voice`` is for a last word."""
    global _voice
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if _voice is None:
        _voice = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


_voice: int | None = None


def raise_voice() -> None:
    """Let what this process prints to standard error be seen again."""
    global _voice
    if _voice is not None:
        with suppress(Exception):
            sys.stderr.flush()
        os.dup2(_voice, 2)
        os.close(_voice)
        _voice = None


def _is_loss(error: RuntimeError) -> bool:
    """Whether torch says that it could not reach another process."""
    known: Any = getattr(dist, "DistError", ())
    return isinstance(error, known) or any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "Connection closed"))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
