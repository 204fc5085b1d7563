"""Which device computes."""

from __future__ import annotations

from typing import get_args

import torch

from ..arguments import one_of
from ..errors import UserError
from ..limits import DeviceName, Precision


def find_device(name: str) -> torch.device:
    """The device of this name (``auto``: a GPU if there is one), or a sentence about what this machine lacks."""
    one_of("device", name, get_args(DeviceName))
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    if not present[name]:
        raise UserError(f"no {name.upper()} device found on this machine; use --device cpu or auto")
    return torch.device(name)


def require_precision(precision: str, device: torch.device) -> None:
    """It must be known, and half precision with loss scaling exists on GPUs only."""
    one_of("precision", precision, get_args(Precision))
    if precision == "16-mixed" and device.type == "cpu":
        raise UserError("--precision 16-mixed needs a GPU, but the device is the CPU; use --precision bf16-mixed or 32")
