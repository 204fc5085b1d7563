"""``python -m drcil.cli.child`` is ``drcil`` for a parent process: a command that is stopped when its parent ends.

The parent holds the other end of standard input. It closes when the parent is gone, however it went.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from . import main

_PATIENCE = 2.0
"""Seconds between the two."""


def end_with_parent() -> None:
    """Wait for the end of standard input, then stop as at a polite kill; if that takes long, at once."""
    # Not through sys.stdin: its lock, held by a waiting thread, would keep the interpreter from closing.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    # Nothing is lost: what is on disk was written whole, and nobody waits for the rest.
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(main())
