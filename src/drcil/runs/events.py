"""Reading the event log of a run: one JSON object per line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..reading import open_file

LONGEST = 2**32
"""Bytes of an event log."""


def parse_events(lines: bytes) -> list[dict[str, Any]]:
    """The events of whole lines; those that a kill cut short are passed over."""
    entries = []
    for line in lines.splitlines():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a log; none where there is no log to read."""
    try:
        with open_file(path, LONGEST) as file:
            return parse_events(file.read())
    except OSError:
        return []
