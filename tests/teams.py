"""Real processes that work as a team: a function of a test, called in each of them at once."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from drcil.inference.inference import Inference


def in_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the function returns in each process, by rank; it is one that a module has."""
    with tempfile.TemporaryDirectory() as place:
        # Forked, which takes no time: torch has one thread here, and its others are started when they are needed.
        multiprocessing.start_processes(_member, (size, Path(place), function, arguments), size, start_method="fork")
        return [torch.load(Path(place) / f"{rank}.pt", weights_only=False) for rank in range(size)]


@contextmanager
def in_double() -> Iterator[None]:
    """Within the block nets compute with 64 bits.

    With 32, rounding is carried on: an activation that is zero by a hair in one process is not in another.
    """
    single = Inference.normalised
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(Inference, "normalised", lambda self, pixels: single(self, pixels).double()):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def _member(rank: int, size: int, place: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place / 'meeting'}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    try:
        torch.save(function(*arguments), place / f"{rank}.pt")
    except BaseException:
        traceback.print_exc()
        # Without a farewell, which would wait for those that are stuck.
        os._exit(1)
    dist.destroy_process_group()
