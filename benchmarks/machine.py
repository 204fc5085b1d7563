"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Processor, cores and versions, and how busy the machine was: figures of a busy machine say little."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "busy": _busy(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _busy() -> float | None:
    """How many processes want a core; None where the system does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
