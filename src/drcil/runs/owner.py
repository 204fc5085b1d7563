"""One process at a time in a run's directory, on this machine and on others that share the disk.

Locks of files tell processes of one machine apart, but many network drives do not pass them on. So the process that
works in a directory also leaves a note there with the name of its machine, and touches it every few seconds.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..disk import locked, write_bytes
from ..errors import UserError, legible
from ..reading import read_bytes

LOCK, OWNER = ".lock", ".owner"
_LONGEST = 1000
"""Bytes of the name of a machine."""
_BEAT = 10.0
"""Seconds between two touches of the note."""
_SILENCE = 60.0
"""Seconds without one after which the process that left the note is taken for dead."""


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Within the block no other process passes here; the second is refused."""
    with locked(directory / LOCK, f"{directory} is in use by another process; wait for it or stop it"):
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
            f"{directory} is in use by a process on {legible(host)}; wait for it or stop it (if it was killed, try "
            f"again in a minute)"
        )


def _beat(note: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT):
        with suppress(OSError):
            os.utime(note)
