"""Where the engine computes: the device, and how torch and the C library are to behave there."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import torch
from lightning_fabric import Fabric

from ..errors import UserError

if TYPE_CHECKING:
    from .engine import EngineSettings

_FABRIC_PRECISION = {"32": "32-true", "16-mixed": "16-mixed", "bf16-mixed": "bf16-mixed"}
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's ``mallopt``."""
_KEPT_BLOCKS = (1 << 30, 32 << 20)
"""Up to how many bytes blocks are to be kept when they are freed; older versions of glibc refuse the first."""


def make_fabric(settings: EngineSettings) -> Fabric:
    """The device and precision that are asked for, or a sentence about what this machine lacks."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for, but this machine has no CUDA device; use --device cpu or auto")
    if settings.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps was asked for, but this machine has no MPS device; use --device cpu or auto")
    on_cpu = settings.device == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    if settings.device in ("auto", "cuda") and torch.cuda.is_available():
        make_repeatable()
    if settings.precision == "16-mixed" and on_cpu:
        raise UserError("--precision 16-mixed needs a GPU, but the device is the CPU; use --precision bf16-mixed or 32")
    if on_cpu:
        keep_freed_memory()
    fabric = Fabric(accelerator=settings.device, devices=1, precision=_FABRIC_PRECISION[settings.precision])  # type: ignore[arg-type]
    if settings.compile:
        require_compiler(fabric.device)
    return fabric


def make_repeatable() -> None:
    """Let CUDA choose its kernels by rule, not by timing or by what is free, so that a resumed run repeats them.

    Where there is no such kernel, torch warns and takes another.
    """
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, if its C library can be told so.

    Otherwise the maps of every step are given back to the system and fetched again page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # The others without this one would do harm: setting any of them ends glibc's own adaptation to large blocks.
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _KEPT_BLOCKS):
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 1 << 26)


def require_compiler(device: torch.device) -> None:
    """Compile something small, to say now and in a sentence what would otherwise end the first stage."""
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"--compile cannot be used on this machine ({why}); install a compiler (of C++ for the CPU, Triton for "
            f"CUDA), or leave it out"
        ) from error
