"""Where datasets live on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import UserError


def data_directory(given: Path | None = None) -> Path:
    """The data directory: the one given, else the one ``DRCIL_DATA`` names, else ``data`` where the program runs."""
    return expanded(given or Path(os.environ.get("DRCIL_DATA") or "data"))


def expanded(path: str | Path) -> Path:
    """The path with ``~`` and ``~user`` replaced by their home directories."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"'{path}' cannot be found: there is no home directory of that name") from None
