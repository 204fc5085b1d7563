"""A plugin with a method, and how it is installed."""

from __future__ import annotations

from pathlib import Path


def install(directory: Path, name: str, module: str) -> None:
    """What a package leaves in site-packages that has an entry point."""
    information = directory / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[drcil.plugins]\n{name} = {module}\n")


METHOD = """
from drcil.methods.catalog import METHODS, register_preset
from drcil.methods.replay import Replay
register_preset("{name}", Replay, summary="Mine", paper="None", year=2026, recipe="replay")
"""
