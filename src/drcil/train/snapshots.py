"""Snapshots within a task, for exact resume.

For the task in progress a ``SnapshotStore`` has the result of every finished stage and at most one snapshot of the
current stage. When the task is learnt again after a kill, finished stages are restored instead of trained, and the
current stage resumes from its snapshot. When the task is done, its snapshots are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..files import checksum, file_name, read_tensors, remove, remove_files, write_tensors
from ..nets.backbone import frozen_backbones
from ..stages import Stage
from .optimizers import parameters_of

_PARTIAL = "partial.safetensors"
_FINISHED = re.compile(r"[0-9]{2,}-[0-9]{2,}-.+\.safetensors")
_SEAL = "seal"


@dataclass(frozen=True)
class StageKey:
    """A stage within a run: its task, its position within the task, and a digest of what it begins with."""

    task: int
    position: int
    stage: str
    digest: str

    @property
    def file(self) -> str:
        return f"{self.task:02d}-{self.position:02d}-{file_name(self.stage, 'a stage')}.safetensors"


class Digests:
    """Digests of modules that do not change meanwhile; every tensor is hashed once."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[object, ...], bytes] = {}

    def of_stage(self, stage: Stage) -> str:
        """Tells stages apart by schedule, groups, data and the initial net, frozen parts included.

        A repeated task arrives at the same net bit for bit, unless a seed, a setting or the code has changed: then its
        snapshots are useless. What the net does not show, such as the augmentation, is in the store's settings.
        """
        digest = hashlib.blake2b(stage.schedule.model_dump_json().encode(), digest_size=16)
        for group in stage.groups or ():
            rates = f"{group.first_lr_factor} {group.lr_factor}"
            digest.update(f"{len(group.parameters)} {rates} {group.weight_decay}".encode())
        digest.update(" ".join(str(backbone.frozen) for backbone in frozen_backbones(stage.net)).encode())
        digest.update(stage.data.ids.tobytes() + stage.data.labels.tobytes())
        digest.update(self.of_module(stage.net).encode())
        return digest.hexdigest()

    def of_module(self, module: nn.Module) -> str:
        """Tells modules apart by the names and values of all their tensors."""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in module.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            if key not in self._tensors:
                values = tensor.detach().cpu().contiguous().numpy()
                self._tensors[key] = hashlib.blake2b(values, digest_size=16).digest()
            digest.update(self._tensors[key])
        return digest.hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """A stage in progress: its next epoch and step, tensors by name, and what is not a tensor, as JSON."""

    epoch: int
    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


class SnapshotStore:
    """The snapshots of one run. Without a directory nothing is saved."""

    def __init__(
        self,
        directory: Path | None = None,
        seconds: float = 20.0,
        choices: Mapping[str, Any] | None = None,
        root: Path | None = None,
    ) -> None:
        """``choices``: the settings, as JSON, that training depends on; snapshots with others are ignored.

        ``root``: the directory of the run or the model; below it no link is followed.
        """
        self.directory, self._root = directory, root
        self.seconds = seconds
        self.choices = dict(choices or {})
        self._last_written = time.monotonic()

    def finished(self, key: StageKey) -> dict[str, Tensor] | None:
        """Net and hooks of a stage, if it was finished before."""
        content = self._read(key.file, key)
        return content[0] if content else None

    def partial(self, key: StageKey) -> Snapshot | None:
        """The latest snapshot, if this stage was in progress."""
        content = self._read(_PARTIAL, key)
        if content is None:
            return None
        tensors, note = content
        with self.fitting():
            return Snapshot(note["epoch"], note["step"], tensors, note["scalars"])

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Within the block a snapshot is restored; one that does not fit is a UserError."""
        try:
            yield
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"the snapshot in {self.directory} does not fit the run: {error}; delete it") from error

    def due(self) -> bool:
        """Whether enough time has passed for another snapshot to be worth its cost."""
        return self.directory is not None and time.monotonic() - self._last_written >= self.seconds

    def save_partial(self, key: StageKey, snapshot: Snapshot) -> None:
        if self.directory is not None:
            note = {"epoch": snapshot.epoch, "step": snapshot.step, "scalars": snapshot.scalars}
            self._write(_PARTIAL, snapshot.tensors, {**self._note(key), **note})
            self._last_written = time.monotonic()

    def save_finished(self, key: StageKey, tensors: dict[str, Tensor]) -> None:
        if self.directory is not None:
            self._write(key.file, tensors, self._note(key))
            remove(self.directory / _PARTIAL, self._root)
            self._last_written = time.monotonic()

    def clear(self) -> None:
        """Remove the snapshots of a task that is done."""
        if self.directory is not None:
            remove_snapshots(self.directory, self._root)

    def _read(self, name: str, key: StageKey) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and note of a snapshot, if there is an undamaged one of this stage and these settings."""
        if self.directory is None or not os.path.isfile(self.directory / name):
            return None
        try:
            tensors, note = read_tensors(self.directory / name)
        except UserError:
            return None
        if not isinstance(note, dict) or note.pop(_SEAL, None) != _seal(tensors, note):
            return None
        return (tensors, note) if self._note(key).items() <= note.items() else None

    def _write(self, name: str, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
        assert self.directory is not None
        on_cpu = {path: tensor.detach().cpu() for path, tensor in tensors.items()}
        write_tensors(self.directory / name, on_cpu, {**note, _SEAL: _seal(on_cpu, note)}, self._root)

    def _note(self, key: StageKey) -> dict[str, Any]:
        return {**asdict(key), "choices": self.choices}


def remove_snapshots(directory: Path, root: Path | None = None) -> None:
    """Remove the snapshots in a directory, and the directory if nothing else is in it."""
    remove_files(directory, lambda name: name == _PARTIAL or _FINISHED.fullmatch(name) is not None, root)


def _seal(tensors: dict[str, Tensor], note: dict[str, Any]) -> str:
    """Digest of a whole snapshot: one that is damaged is not restored."""
    digest = hashlib.sha256(checksum(note).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with this prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def restore_module(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy the values into the module's tensors: identity, device and memory format stay."""
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
            # Fused optimisers iterate over raw memory: state must have the memory format of its parameter.
            value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
