"""Runs as processes of this machine."""

from __future__ import annotations

from pathlib import Path

from ..children import Child
from . import ENGINES


@ENGINES.register("local")
class Local:
    """A process of this machine for each run."""

    def start(self, directory: Path, log: Path) -> Child:
        return Child(["resume", str(directory)], log)

    def close(self) -> None:
        """Processes are all there was."""
