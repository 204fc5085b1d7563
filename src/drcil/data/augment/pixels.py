"""What the operations share: values brought beside the images, and levels brought back to bytes."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 256


def on_device_of(values: Tensor, images: Tensor) -> Tensor:
    """The values on the device of the images, without waiting for what a GPU still has to do."""
    # CUDA copies an unpinned source aside at once; other devices might read it when it is gone.
    return values.to(images.device, non_blocking=images.is_cuda)


def to_bytes(levels: Tensor) -> Tensor:
    """Floating levels, which are overwritten, clipped to 0..255 and cut off to whole numbers."""
    # By way of int16, because the direct conversion of floats to bytes is not vectorised on CPUs.
    return levels.clamp_(0, LEVELS - 1).to(torch.int16).to(torch.uint8)
