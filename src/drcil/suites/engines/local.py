"""Runs as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError
from ..children import Child
from . import ENGINES, Request


@ENGINES.register("local")
class Local:
    """A process of this machine for each run; those at the same time share its cores."""

    def __init__(self, request: Request) -> None:
        others = {"--ray-address": request.address, "--cpus-per-run": request.cpus, "--gpus-per-run": request.gpus}
        for option, given in others.items():
            if given is not None:
                raise UserError(f"{option} is for --engine ray; without it there are --jobs and --threads")
        self._jobs = request.jobs or 1

    @property
    def threads(self) -> int | None:
        return None if self._jobs == 1 else max(1, (os.cpu_count() or 1) // self._jobs)

    def open(self, places: Sequence[Path]) -> int:
        return self._jobs

    def start(self, directory: Path, log: Path) -> Child:
        return Child(["resume", str(directory)], log)

    def close(self) -> None:
        """Processes are all there was."""
