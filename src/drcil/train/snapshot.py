"""Snapshots within a task, so that a killed run loses seconds and ends bit for bit as if it had not been killed.

A journal keeps, for the task being learnt, the result of every finished stage and at most one snapshot of the
stage in progress, taken at an epoch boundary. When the task is learnt again after a kill, finished stages are
restored instead of trained. When a task is done, its journal is cleared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..disk import read_tensors, write_tensors
from ..errors import UserError

_PARTIAL = "partial.safetensors"


@dataclass(frozen=True)
class Place:
    """A stage within a run: its task, its position within the task, and a digest of what it does."""

    task: int
    position: int
    stage: str
    digest: str

    @property
    def file(self) -> str:
        return f"{self.task:02d}-{self.position:02d}-{self.stage}.safetensors"

    def note(self) -> dict[str, Any]:
        return {"task": self.task, "position": self.position, "stage": self.stage, "digest": self.digest}


class Journal:
    """The snapshots of one run. Without a directory it keeps nothing."""

    def __init__(self, directory: Path | None = None, seconds: float = 20.0) -> None:
        self.directory = directory
        self.seconds = seconds
        self._last_written = time.monotonic()

    def finished(self, place: Place) -> dict[str, Tensor] | None:
        """What the stage at this place made of its net, if it was finished before."""
        found = self._read(place.file, place)
        return found[0] if found else None

    def partial(self, place: Place) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The epoch to go on with and the state there, if this stage was under way."""
        found = self._read(_PARTIAL, place)
        return (found[1]["epoch"], found[0], found[1]["scalars"]) if found else None

    def due(self) -> bool:
        """Whether enough time has passed for another snapshot to be worth its cost."""
        return self.directory is not None and time.monotonic() - self._last_written >= self.seconds

    def keep_partial(self, place: Place, epoch: int, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        if self.directory is not None:
            write_tensors(self.directory / _PARTIAL, tensors, {**place.note(), "epoch": epoch, "scalars": scalars})
            self._last_written = time.monotonic()

    def keep_finished(self, place: Place, tensors: dict[str, Tensor]) -> None:
        if self.directory is not None:
            write_tensors(self.directory / place.file, tensors, place.note())
            (self.directory / _PARTIAL).unlink(missing_ok=True)
            self._last_written = time.monotonic()

    def clear(self) -> None:
        """Forget the task: it is done, and what it made is kept elsewhere."""
        if self.directory is not None and self.directory.is_dir():
            for file in self.directory.iterdir():
                file.unlink()

    def _read(self, name: str, place: Place) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """A snapshot, if there is one and it is of this very place; one of another place is as good as none."""
        if self.directory is None or not (self.directory / name).is_file():
            return None
        try:
            tensors, note = read_tensors(self.directory / name)
        except UserError:
            return None
        return (tensors, note) if place.note().items() <= note.items() else None


def module_state(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def restore_module(prefix: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy the values into the module's own tensors: identity, device and memory format stay."""
    own = {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
    module.load_state_dict(own, strict=True)


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors by name; what is not a tensor goes into the scalars."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                scalars[f"{index}.{name}"] = value
    return tensors, scalars


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    named = {name.removeprefix("optimizer."): t for name, t in tensors.items() if name.startswith("optimizer.")}
    for path, value in {**named, **scalars}.items():
        index, name = path.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
