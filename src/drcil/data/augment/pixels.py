"""What the operations share: values brought beside the images, pixels fetched, levels brought back to bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LEVELS = 256
_PIECE = 1 << 19
"""Bytes of images that a CPU keeps at hand, with what is computed on the way, from one operation to the next."""


def on_device_of(values: Tensor, images: Tensor) -> Tensor:
    """The values on the device of the images, without waiting for what a GPU still has to do."""
    # CUDA copies an unpinned source aside at once; other devices might read it when it is gone.
    return values.to(images.device, non_blocking=images.is_cuda)


def in_pieces(operation: Callable[[Tensor, Tensor], Tensor], images: Tensor, values: Tensor) -> Tensor:
    """The operation on images and their values (…, N); on a CPU some images at a time."""
    some = max(1, _PIECE // max(1, math.prod(images.shape[1:])))
    if images.device.type != "cpu" or len(images) <= some:
        return operation(images, values)
    return torch.cat(list(map(operation, torch.split(images, some), torch.split(values, some, dim=-1))))


def put_rows(whole: Tensor, chosen: Tensor, rows: Tensor) -> None:
    """Overwrite the chosen rows (places on the CPU) of ``whole``."""
    if whole.device.type == "cpu":
        # Torch would copy element by element.
        whole.numpy()[chosen.numpy()] = rows.numpy()
    else:
        whole.index_copy_(0, on_device_of(chosen, whole), rows)


def to_bytes(levels: Tensor) -> Tensor:
    """Floating levels, which are overwritten, clipped to 0..255 and cut off to whole numbers."""
    # By way of int16, because the direct conversion of floats to bytes is not vectorised on CPUs.
    return levels.clamp_(0, LEVELS - 1).to(torch.int16).to(torch.uint8)


def pick(images: Tensor, places: Tensor) -> Tensor:
    """The pixels (N, C, P) at these places (N, ...) of the flattened rows; the same for all channels."""
    # Along one flat axis, because a gather along short rows is several times slower on CPUs.
    return images.flatten(2).gather(2, places.long().flatten(1)[:, None].expand(-1, images.shape[1], -1))


def cubic(values: Sequence[Tensor], shift: Tensor) -> Tensor:
    """Through four values in a row, this far from the second to the third; a = -1 as in Pillow's transforms."""
    before, here, after, beyond = values
    cube = here - before + beyond - after
    return here + shift * (after - before + shift * (before - here - cube + shift * cube))
