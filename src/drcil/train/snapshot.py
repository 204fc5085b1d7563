"""Snapshots within a task, so that a killed run loses seconds and ends bit for bit as if it had not been killed.

A journal keeps, for the task being learnt, the result of every finished stage and at most one snapshot of the
stage in progress. When the task is learnt again after a kill, finished stages are restored instead of trained,
and the stage in progress goes on from its snapshot. When a task is done, its journal is cleared.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..disk import read_tensors, remove_directory, write_tensors
from ..errors import UserError
from ..nets.freezing import frozen_backbones
from ..reading import checksum, is_file
from ..stages import Stage
from .optimizers import parameters_of

_PARTIAL = "partial.safetensors"
_SEAL = "seal"


@dataclass(frozen=True)
class Place:
    """A stage within a run: its task, its position within the task, and a digest of what it begins with."""

    task: int
    position: int
    stage: str
    digest: str

    @property
    def file(self) -> str:
        return f"{self.task:02d}-{self.position:02d}-{self.stage}.safetensors"

    def note(self) -> dict[str, Any]:
        return {"task": self.task, "position": self.position, "stage": self.stage, "digest": self.digest}


def digest_of(stage: Stage) -> str:
    """Tells stages apart by schedule, groups, data and the net they begin with, frozen or not; call it before training.

    Learning a task again arrives at the same net bit for bit, unless a seed, a setting or the code has changed:
    then what was kept is of no use. What the net does not show, such as the augmentation, the journal knows.
    """
    digest = hashlib.blake2b(stage.schedule.model_dump_json().encode(), digest_size=16)
    for group in stage.groups or ():
        rates = f"{group.first_lr_factor} {group.lr_factor}"
        digest.update(f"{len(group.parameters)} {rates} {group.weight_decay}".encode())
    digest.update(" ".join(str(backbone.frozen) for backbone in frozen_backbones(stage.net)).encode())
    digest.update(stage.data.rows.tobytes() + stage.data.labels.tobytes())
    digest.update(digest_of_module(stage.net).encode())
    return digest.hexdigest()


def digest_of_module(module: nn.Module) -> str:
    """Tells modules apart by all their tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """A stage in progress: the epoch and step to go on with, tensors by name, and what is not a tensor, as JSON."""

    epoch: int
    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


class Journal:
    """The snapshots of one run. Without a directory it keeps nothing."""

    def __init__(
        self, directory: Path | None = None, seconds: float = 20.0, choices: Mapping[str, Any] | None = None
    ) -> None:
        """``choices``: the settings, as JSON, that training depends on; what was kept under others is ignored."""
        self.directory = directory
        self.seconds = seconds
        self.choices = dict(choices or {})
        self._last_written = time.monotonic()

    def finished(self, place: Place) -> dict[str, Tensor] | None:
        """What the stage at this place made of its net, if it was finished before."""
        found = self._read(place.file, place)
        return found[0] if found else None

    def partial(self, place: Place) -> Snapshot | None:
        """The latest snapshot, if this stage was under way."""
        found = self._read(_PARTIAL, place)
        if found is None:
            return None
        with self.fitting():
            return Snapshot(found[1]["epoch"], found[1]["step"], found[0], found[1]["scalars"])

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Within the block what was read is restored; what does not fit is told."""
        try:
            yield
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"the snapshot in {self.directory} does not fit the run: {error}; delete it") from error

    def due(self) -> bool:
        """Whether enough time has passed for another snapshot to be worth its cost."""
        return self.directory is not None and time.monotonic() - self._last_written >= self.seconds

    def keep_partial(self, place: Place, snapshot: Snapshot) -> None:
        if self.directory is not None:
            note = {"epoch": snapshot.epoch, "step": snapshot.step, "scalars": snapshot.scalars}
            self._write(_PARTIAL, snapshot.tensors, {**self._note(place), **note})
            self._last_written = time.monotonic()

    def keep_finished(self, place: Place, tensors: dict[str, Tensor]) -> None:
        if self.directory is not None:
            self._write(place.file, tensors, self._note(place))
            (self.directory / _PARTIAL).unlink(missing_ok=True)
            self._last_written = time.monotonic()

    def clear(self) -> None:
        """Forget the task: it is done, and what it made is kept elsewhere."""
        if self.directory is not None:
            remove_directory(self.directory)

    def _read(self, name: str, place: Place) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """A snapshot, if there is a sound one of this very place and these choices; any other is as good as none."""
        if self.directory is None or not is_file(self.directory / name):
            return None
        try:
            tensors, note = read_tensors(self.directory / name)
        except UserError:
            return None
        if not isinstance(note, dict) or note.pop(_SEAL, None) != _seal(tensors, note):
            return None
        return (tensors, note) if self._note(place).items() <= note.items() else None

    def _write(self, name: str, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
        assert self.directory is not None
        here = {path: tensor.detach().cpu() for path, tensor in tensors.items()}
        write_tensors(self.directory / name, here, {**note, _SEAL: _seal(here, note)})

    def _note(self, place: Place) -> dict[str, Any]:
        return {**place.note(), "choices": self.choices}


def _seal(tensors: dict[str, Tensor], note: dict[str, Any]) -> str:
    """A digest of all that a snapshot says: a byte that changed on the disk is not trained on."""
    digest = hashlib.sha256(checksum(note).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What ``prefixed`` put there."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def restore_module(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy the values into the module's own tensors: identity, device and memory format stay."""
    module.load_state_dict(tensors, strict=True)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as tensors by name, ``parameter.entry``."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = parameters_of(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        index, name = path.split(".", 1)
        parameter = parameters[int(index)]
        if value.shape == parameter.shape:
            # Fused optimisers walk through memory: what belongs to a parameter must be laid out as it is.
            value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
