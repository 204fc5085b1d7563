"""``python -m drcil.cli.child`` is ``drcil`` for a parent process: a command that is stopped when its parent ends.

The parent holds the other end of standard input. It closes when the parent is gone, however it went.
"""

from __future__ import annotations

import sys
import threading

from ..process import end_with_parent
from . import main

if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(main())
