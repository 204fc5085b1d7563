"""A run's event log: what every process told that worked on it, one JSON object per line.

It is the only file that grows line by line, so its last line may be cut short. Epochs that were trained again after a
kill stand in it twice; ``records_of`` tells what counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..disk import append_line
from ..reading import open_file
from ..train.events import EpochDone, Event, Record, StageDone, StageStarted, TaskDone

EVENTS = "events.jsonl"
LONGEST = 2**32
"""Bytes of an event log."""

_KINDS: dict[str, TypeAdapter[Event]] = {
    kind.__name__: TypeAdapter(kind) for kind in (StageStarted, EpochDone, StageDone, TaskDone)
}


def log_entry(directory: Path, kind: str, **entries: Any) -> None:
    """Add a line to the log of the run in a directory."""
    append_line(directory / EVENTS, json.dumps({"time": round(time.time(), 3), "event": kind, **entries}))


def log_event(directory: Path, event: Event) -> None:
    """The same for an event; steps are too many to be kept."""
    if type(event).__name__ in _KINDS:
        log_entry(directory, type(event).__name__, **event.__dict__)


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


def event_of(entry: dict[str, Any]) -> Event | None:
    """The event that an entry tells of; None where it is none, or not one of a run's own."""
    kind = _KINDS.get(str(entry.get("event")))
    if kind is not None:
        with suppress(ValidationError):
            return kind.validate_python(entry)
    return None


def records_of(directory: Path) -> list[Record]:
    """The epochs and tasks that count, each once and in order."""
    kept: list[Record] = []
    for entry in read_events(directory / EVENTS):
        event = event_of(entry)
        if isinstance(event, StageStarted):
            kept = kept[: _reached(kept, event)]
        elif isinstance(event, Record):
            kept.append(event)
    return kept


def _reached(kept: Sequence[Record], start: StageStarted) -> int:
    """How many of the records are from before the place where training begins."""
    for number, record in enumerate(kept):
        if isinstance(record, TaskDone):
            again = record.task >= start.task
        else:
            same = (record.task, record.stage) == (start.task, start.stage)
            again = record.task > start.task or (same and record.epoch >= start.first_epoch)
        if again:
            return number
    return len(kept)
