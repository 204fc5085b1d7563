"""Whether a run has room on this machine. Only what certainly cannot fit is refused, before anything is begun."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.sources.imageset import ImageShape
from ..errors import UserError
from ..inference.device import find_device
from ..limits import machine_memory
from ..models.model import Model
from ..nets.build import backbone_for
from ..train import EngineSettings

_FULL, _HALF = 4, 2
"""Bytes of a number, in full precision and in mixed precision."""


def require_room(model: Model, engine: EngineSettings) -> None:
    """One step of training, and one batch of images to be classified, must fit into the memory of the device."""
    present = device_memory(engine.device)
    if present is None:
        return
    each = _FULL if engine.precision == "32" else _HALF
    kept, widest = maps_of_image(model)
    batch = max((schedule.batch_size for schedule in model.method.settings.schedules().values()), default=1)
    needed = max(kept * batch, widest * engine.inference_batch) * each
    if needed > present:
        raise UserError(
            f"images of {model.shape} (channels, height, width) need more than {needed / 2**30:.1f} GiB with backbone "
            f"'{model.method.architecture.backbone}' and batches of {batch}, and the device has {present / 2**30:.1f} "
            f"GiB; give a smaller --image-size"
        )


def device_memory(name: str) -> int | None:
    """Bytes of the memory that a device computes in; None where nothing says."""
    device = find_device(name)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def maps_of_image(model: Model) -> tuple[int, int]:
    """Numbers that one image takes at least: what all layers keep for training; the widest input and output.

    The backbone sees an image without content, which takes neither memory nor time.
    """
    shape: ImageShape = model.shape
    kept: dict[int, Tensor] = {}
    widest = shape.channels * shape.size**2

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal widest
        kept[id(inputs[0])] = inputs[0]
        widest = max(widest, inputs[0].numel() + output.numel())

    try:
        with torch.device("meta"), torch.no_grad():
            backbone = backbone_for(model.method.architecture.backbone, shape.channels, shape.size)
            for module in backbone.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    module.register_forward_hook(note)
            backbone.eval()(torch.zeros(1, shape.channels, shape.size, shape.size))
    except Exception:
        # A backbone from outside may not know such images; then only the images themselves are known.
        kept = {}
    return max(widest, sum(tensor.numel() for tensor in kept.values())), widest
