"""Where a run is carried out: machine and versions."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from typing import Any

import torch

from ..errors import legible
from .commit import source_commit


def environment() -> dict[str, Any]:
    """Machine, versions and commit, for whoever compares two results."""
    packages = ("drcil", "torch", "numpy", "pillow", "lightning-fabric")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "commit": source_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": [legible(argument) for argument in sys.argv],
    }
