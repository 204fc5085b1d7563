"""The logger ``wandb``: a run of Weights & Biases."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...disk import remove_directory, write_bytes
from ...errors import UserError
from ...reading import is_file, read_bytes, read_toml
from ..events import EpochDone, Record
from . import LOGGERS
from .scalars import own_directory, scalars

_PROJECT = "drcil"
_NAME = 64
"""Bytes of the file with the name that Weights & Biases knows a run by."""


@LOGGERS.register("wandb")
class WandbRun:
    """A run of Weights & Biases, online or offline as it is set up there; files in wandb/."""

    needs = "wandb"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._place = own_directory(directory / "wandb")
        self._run: Any = None
        self._former: list[Path] = []
        self._epochs, self._step, self._first = 0, 0, 0

    def __call__(self, records: Sequence[Record]) -> None:
        if self._run is None:
            self._begin(resumed=len(records) > 1)
        for record in records:
            numbers = scalars(record)
            if isinstance(record, EpochDone):
                self._epochs += 1
                numbers["epoch"] = self._epochs
            else:
                numbers["classes"] = record.classes
            # Steps that Weights & Biases has from an earlier process are the same; it takes none twice.
            if self._step >= self._first:
                self._run.log(numbers, step=self._step)
            self._step += 1

    def _begin(self, resumed: bool) -> None:
        wandb: Any = import_module("wandb")
        # Whoever is not logged in is not asked to, in the midst of a training.
        settings = wandb.Settings(silent=True, console="off", login_timeout=1)
        self._run = wandb.init(
            id=self._id(resumed),
            resume="allow",
            dir=str(self._directory),
            name=self._directory.resolve().name,
            project=None if "WANDB_PROJECT" in os.environ else _PROJECT,
            config=read_toml(config) if is_file(config := self._directory / "config.toml") else None,
            settings=settings,
        )
        if self._run.disabled:
            raise UserError("Weights & Biases is disabled; log in with 'wandb login', or set WANDB_MODE=offline")
        self._run.define_metric("*", step_metric="epoch")
        self._run.define_metric("tasks/*", step_metric="classes")
        self._first = self._run.step
        if self._run.offline:
            # What earlier processes wrote is in this run, too, and would be sent twice.
            own = Path(self._run.dir).parent
            self._former = [place for place in self._place.glob(f"offline-run-*-{self._run.id}") if place != own]

    def _id(self, resumed: bool) -> str:
        """The name that Weights & Biases knows the run by: a new one, or that of earlier processes."""
        kept = self._place / "drcil-run.txt"
        if resumed and is_file(kept):
            name = read_bytes(kept, _NAME).decode(errors="replace").strip()
            if not name.isalnum():
                raise UserError(f"{kept} is damaged: it does not have the name of a run")
            return name
        name = secrets.token_hex(4)
        write_bytes(kept, f"{name}\n".encode())
        return name

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            while self._former:
                remove_directory(self._former.pop())
