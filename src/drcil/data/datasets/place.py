"""Where datasets live on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def data_directory(given: Path | None = None) -> Path:
    """The data directory: the one given, else the one ``DRCIL_DATA`` names, else ``data`` where the program runs."""
    return (given or Path(os.environ.get("DRCIL_DATA") or "data")).expanduser()
