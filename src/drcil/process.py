"""What holds for the whole process: threads, repeatable kernels, memory, its end. Changed only when asked for."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .arguments import whole
from .limits import THREADS

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's ``mallopt``."""
_KEPT_BLOCKS = (1 << 30, 32 << 20)
"""Up to how many bytes blocks are to be kept when they are freed; older versions of glibc refuse the first."""

_PATIENCE = 2.0
"""Seconds between a polite stop and a hard one."""


def configure(threads: int | None = None) -> None:
    """Set this process up for training, as the command line does: faster on CPUs, repeatable on CUDA.

    ``threads`` are those of one operation on the CPU (None: as it is). Freed memory is kept for the next step, and
    CUDA takes deterministic kernels. It concerns everything else that runs in the process, so nothing in drcil calls
    it by itself but the command line.
    """
    if threads is not None:
        torch.set_num_threads(whole("threads", threads, THREADS))
    if torch.cuda.is_available():
        make_repeatable()
    else:
        keep_freed_memory()


def make_repeatable() -> None:
    """Let CUDA choose its kernels by rule, not by timing or by what is free, so that a resumed run repeats them.

    Where there is no such kernel, torch warns and takes another.
    """
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # With mere warnings the fused kernels of attention add up their gradients in any order.
    for enable in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, enable)(False)


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, if its C library can be told so.

    Otherwise the maps of every step are given back to the system and fetched again page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # The others without this one would do harm: setting any of them ends glibc's own adaptation to large blocks.
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _KEPT_BLOCKS):
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 1 << 26)


@contextmanager
def silenced(*programs: str) -> Iterator[None]:
    """Within the block libraries do not write of their attempts: what comes of them is said in one sentence."""
    before = {name: logging.getLogger(name).level for name in programs}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def end_with_parent() -> None:
    """Wait for the end of standard input, then stop as at a polite kill; if that takes long, at once."""
    # Not through sys.stdin: its lock, held by a waiting thread, would keep the interpreter from closing.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    # Nothing is lost: what is on disk was written whole, and nobody waits for the rest.
    os._exit(1)
