"""Real processes that work as a team: a function of a test, called in each of them at once."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from drcil import distributed
from support.processes import FORKS


def in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the function returns in each process, by rank; it is one that a module has."""
    with tempfile.TemporaryDirectory() as place:
        # Forked from a process that has no threads and has imported drcil.
        start = FORKS.get_start_method()
        start_processes(_member, (size, Path(place), function, arguments), size, start_method=start)
        return [torch.load(Path(place) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _member(rank: int, size: int, place: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_group(
        "gloo", init_method=f"file://{place / 'meeting'}", rank=rank, world_size=size, timeout=timedelta(seconds=600)
    )
    try:
        torch.save(function(*arguments), place / f"{rank}.pt")
    except BaseException:
        traceback.print_exc()
        # Without a farewell, which would wait for those that are stuck.
        os._exit(1)
    distributed.destroy_group()
