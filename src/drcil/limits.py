"""What the options of the library may be, by number and by name. Nothing heavy is imported, so that a slip is told
at once, and the command line, the settings of a run and Python agree.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["32", "16-mixed", "bf16-mixed"]


class Bounds(NamedTuple):
    """The numbers from ``least`` to ``most``; whole ones if both are."""

    least: float
    most: float
    open_below: bool = False
    """Whether ``least`` itself is too small."""
    open_above: bool = False
    """Whether ``most`` itself is too large."""

    def __contains__(self, value: object) -> bool:
        """Whether a number lies within; NaN does not."""
        if not isinstance(value, int | float):
            return False
        above = value > self.least if self.open_below else value >= self.least
        return above and (value < self.most if self.open_above else value <= self.most)

    def __str__(self) -> str:
        """
        >>> print(Bounds(1, 8)), print(Bounds(0.0, 1.0, open_below=True, open_above=True))
        from 1 to 8
        above 0 and below 1
        (None, None)
        """
        if not (self.open_below or self.open_above):
            return f"from {self.least} to {self.most}"
        low = f"above {self.least:g}" if self.open_below else f"at least {self.least:g}"
        return f"{low} and below {self.most:g}" if self.open_above else f"{low} and at most {self.most:g}"


SEED = Bounds(0, 2**63 - 1)
ORDER_SEED = Bounds(0, 2**32 - 1)
"""Those of numpy's legacy generator."""
SEEDS = Bounds(1, 10_000)
TASKS = Bounds(1, 1_000_000)
"""More than any stream has; the stream says how many there are."""
IMAGE_SIZE = Bounds(4, 4096)
EPOCHS_SCALE = Bounds(0.0, 1000.0, open_below=True)
VALIDATION = Bounds(0.0, 1.0, open_above=True)
SHARE = Bounds(0.0, 1.0)
THREADS = Bounds(1, max(256, 4 * (os.cpu_count() or 1)))
"""With many more than there are cores nothing moves, and with very many the process is killed."""
WORKERS = Bounds(0, 256)
JOBS = Bounds(1, 256)
RUN_CPUS = Bounds(0.01, 4096.0)
RUN_GPUS = Bounds(0.0, 4096.0)
DEVICES = Bounds(1, 1024)
"""The machine says how many there are."""
ACCUMULATE = Bounds(1, 1024)
TIMEOUT = Bounds(0.0, 1e6, open_below=True)
EVERY = Bounds(1, 1_000_000)
CHANNELS = Bounds(1, 2**20)
CLASSES = Bounds(1, 2**20)
BATCH = Bounds(1, 2**20)
TOP = Bounds(1, 2**31 - 1)
PORT = Bounds(0, 2**16 - 1)


def machine_memory() -> int | None:
    """Bytes of main memory, and of what the system may swap; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return sum(int(lines[name].split()[0]) for name in ("MemTotal", "SwapTotal")) * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
