"""Lock, event log and environment file of a run directory.

Locks of files tell processes of one machine apart, but many network drives do not pass them on. So the process that
works in a directory also leaves a note there with the name of its machine, and touches it every few seconds.

It is the only file that grows line by line, so its last line may be cut short. Epochs that were trained again after a
kill stand in it twice; ``records_of`` tells what counts.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from ..errors import UserError, printable
from ..files import append_line, file_lock, open_regular, read_bytes, write_bytes
from ..train.events import EpochDone, Event, Record, StageDone, StageStarted, TaskDone

LOCK, OWNER = ".lock", ".owner"
_GIT_SECONDS = 10.0
_LONGEST = 1000
"""Bytes of the name of a machine."""
_BEAT = 10.0
"""Seconds between two touches of the note."""
_SILENCE = 60.0
"""Seconds without one after which the process that left the note is taken for dead."""


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Within the block no other process passes here; the second is refused."""
    with file_lock(directory / LOCK, f"{directory} is in use by another process; wait for it or stop it"):
        note = directory / OWNER
        _require_no_other(directory, note)
        write_bytes(note, platform.node().encode(errors="replace"))
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(note, over), daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
            with suppress(OSError):
                note.unlink(missing_ok=True)


def _require_no_other(directory: Path, note: Path) -> None:
    """No process of another machine is at work; one of this machine would have the lock."""
    try:
        host = read_bytes(note, _LONGEST).decode(errors="replace").strip()
        # By the clock of the disk, which set the other time, too.
        os.utime(directory / LOCK)
        age = os.stat(directory / LOCK).st_mtime - os.stat(note).st_mtime
    except (OSError, UserError):
        return
    if host != platform.node() and age < _SILENCE:
        raise UserError(
            f"{directory} is in use by a process on {printable(host)}; wait for it or stop it (if it was killed, try "
            f"again in a minute)"
        )


def _beat(note: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT):
        with suppress(OSError):
            os.utime(note)


EVENTS = "events.jsonl"
LONGEST = 2**32
"""Bytes of an event log."""
_TAIL = 2**16
"""Bytes at the end of a log that are read first."""

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
        with open_regular(path, LONGEST) as file:
            return parse_events(file.read())
    except OSError:
        return []


def last_task_time(directory: Path) -> float | None:
    """When the last finished task was logged, in seconds since 1970; None where the log does not say."""
    try:
        with open_regular(directory / EVENTS, LONGEST) as file:
            size = file.seek(0, os.SEEK_END)
            # Its event is near the end of the log of a finished run.
            for start in dict.fromkeys((max(0, size - _TAIL), 0)):
                file.seek(start)
                times: list[Any] = [
                    entry.get("time") for entry in parse_events(file.read()) if entry.get("event") == "TaskDone"
                ]
                if times:
                    return float(times[-1])
    except (OSError, TypeError, ValueError):
        pass
    return None


def event_of(entry: dict[str, Any]) -> Event | None:
    """The event that an entry tells of; None where it is none, or not one of a run's own."""
    kind = _KINDS.get(str(entry.get("event")))
    if kind is not None:
        with suppress(ValidationError):
            return kind.validate_python(entry)
    return None


def records_of(directory: Path) -> list[Record]:
    """The epochs and tasks that count, each once and in order."""
    records: list[Record] = []
    for entry in read_events(directory / EVENTS):
        event = event_of(entry)
        if isinstance(event, StageStarted):
            records = records[: _reached(records, event)]
        elif isinstance(event, Record):
            records.append(event)
    return records


def _reached(records: Sequence[Record], start: StageStarted) -> int:
    """How many of the records are from before the place where training begins."""
    for number, record in enumerate(records):
        if isinstance(record, TaskDone):
            is_repeated = record.task >= start.task
        else:
            same = (record.task, record.stage) == (start.task, start.stage)
            is_repeated = record.task > start.task or (same and record.epoch >= start.first_epoch)
        if is_repeated:
            return number
    return len(records)


_ROOT = Path(__file__).parents[3]
"""The repository, if the package is run from its source."""


def source_commit(root: Path = _ROOT) -> str | None:
    """The commit of the source; None in an installed package or without git. Changes since then are not noticed."""
    if not (root / ".git").exists():
        # A repository further up is not that of drcil.
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    packages = ("drcil", "torch", "numpy", "pillow")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def environment() -> dict[str, Any]:
    """Machine, versions and commit, to compare results."""
    return {
        "versions": package_versions(),
        "commit": source_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": [printable(argument) for argument in sys.argv],
    }
