"""How fast this machine trains and looks: seconds per image, measured on a few real steps with images of no meaning.

On a CPU the time counts that the process computed, not the time that passed: others who compute meanwhile are not there
for ever.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..data.augment import Augment, Draws
from ..data.sources.blank import BlankSource
from ..data.sources.decode import random_view
from ..data.sources.imageset import ImageSet
from ..data.sources.opening import quickly
from ..data.sources.reader import TOGETHER
from ..inference.inference import Inference
from ..keys import generator, numpy_generator
from ..nets.expanded import members_of
from ..nets.net import Net
from ..nets.task_attention import TaskNet
from ..stages import Stage
from .engine import TrainingEngine
from .events import Event, StepDone
from .optimizers import groups_of

_FEW, _IMAGES = 4, 4096
"""Images of the first step that is timed, and of a stage in all."""
_STEP, _ENOUGH = 0.5, 0.5
"""Seconds of a step at most, where fewer images than a batch has tell as much; seconds to measure at least."""
_TRIES = 3
_PIXELS = 2**20
"""Of a batch from which on its size does not matter."""
_PHOTOGRAPH = (500, 375)
"""Pixels of a usual photograph of ImageNet."""


class Kind(NamedTuple):
    """What seconds per image depend on: all stages, or nets, of one kind and size are equally fast."""

    name: str
    size: int
    """Backbones that an image goes through, and tasks that a net asks of it; time grows with it in a straight line."""


class _Enough(Exception):
    """Nothing more has to be trained."""


def kind_of(stage: Stage, channels: int, pixels: int) -> Kind:
    """The kind of a stage that trains on images of this shape."""
    nets = [stage.net, *stage.teachers.values()]
    trained = {id(parameter) for group in groups_of(stage) for parameter in group.parameters}
    newest = members_of(stage.net)[-1] if isinstance(stage.net, Net) else stage.net
    learns = any(id(parameter) in trained for parameter in newest.parameters())
    words = [
        "trains" if learns else "trains the head of",
        " beside ".join(_outline(net) for net in nets),
        f"{channels}x{pixels}x{pixels}",
        f"{stage.schedule.optimizer} in batches of {_enough_images(stage, pixels)}",
        *(["reading maps"] if stage.reads_maps else []),
        *sorted({type(hook).__name__ for hook in stage.hooks}),
    ]
    return Kind(", ".join(words), sum(_size(net) for net in nets))


def look_kind(net: nn.Module, channels: int, pixels: int) -> Kind:
    """The kind of a look through a net. A head takes next to nothing beside its backbone, unless it asks by task."""
    what = _backbone(net) if isinstance(net, Net) and not isinstance(net, TaskNet) else _outline(net)
    return Kind(f"looks through {what}, {channels}x{pixels}x{pixels}", _size(net))


def step_pace(engine: TrainingEngine, stage: Stage) -> float:
    """Seconds per image of the steps of a stage, without augmentation. Its net is afterwards what it was.

    Where a batch takes long a part of it is timed: what a step takes besides its images is little then.
    """
    images = _blank(stage.data)
    before = {name: tensor.clone() for name, tensor in stage.net.state_dict().items()}
    most, pace = _enough_images(stage, images.source.size), 0.0
    batch = min(_FEW, most)
    try:
        for _ in range(_TRIES):
            pace = _timed(engine, stage, images, batch)
            wanted = min(most, int(_STEP / max(pace, 1e-9)))
            if wanted <= batch or (wanted < most and wanted < 1.5 * batch):
                break
            batch = wanted
    finally:
        stage.net.load_state_dict(before)
    return pace


def look_pace(inference: Inference, net: nn.Module, channels: int, pixels: int) -> float:
    """Seconds per image of a look through a net that is not being trained."""
    frozen, source = inference.frozen(net), BlankSource(_IMAGES, channels, pixels)

    def look(count: int) -> None:
        rows = np.arange(count, dtype=np.int64)
        inference.outputs(frozen, ImageSet(source, rows, rows), lambda output: (output.features.pooled,))

    return _repeated(look, _FEW, min(inference.batch, _IMAGES), inference.device)


def view_pace(augmentation: Augment, device: torch.device, channels: int, pixels: int) -> float:
    """Seconds per image of augmentation, of as many images together as in training."""
    if not augmentation.steps:
        return 0.0
    source = BlankSource(_IMAGES, channels, pixels)

    def augment(count: int) -> None:
        views = source.read(np.arange(count, dtype=np.int64)).to(device)
        augmentation(views, generator("pace"))

    together = max(_FEW, TOGETHER // (channels * pixels**2))
    return _repeated(augment, min(together, _IMAGES), together, device)


def decoding_pace(pixels: int) -> float:
    """Seconds that a process takes to decode a photograph and crop it to so many pixels."""
    drawn = numpy_generator("pace").integers(256, size=(25, 33, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(drawn).resize(_PHOTOGRAPH, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)

    def decode(count: int) -> None:
        for key in range(count):
            with quickly(file.getvalue()) as picture:
                random_view(picture, pixels, Random(key))

    return _repeated(decode, _FEW, _IMAGES, torch.device("cpu"))


def _outline(net: nn.Module) -> str:
    """What a net is made of, whatever it has learnt, and however many backbones stand side by side in it."""
    if not isinstance(net, Net):
        return f"{type(net).__name__} of {sum(parameter.numel() for parameter in net.parameters())} parameters"
    return f"{type(net).__name__} {_backbone(net)} {type(net.head).__name__}"


def _backbone(net: Net) -> str:
    return json.dumps(members_of(net)[-1].describe(), sort_keys=True)


def _size(net: nn.Module) -> int:
    backbones = len(members_of(net)) if isinstance(net, Net) else 1
    return backbones + (len(net.head.tasks) if isinstance(net, TaskNet) else 0)


def _batch(stage: Stage) -> int:
    """Images of a step; of a stage that has fewer, a power of two, lest every task be a kind of its own."""
    most, there = stage.schedule.batch_size, max(2, len(stage.data))
    return most if there >= most else 1 << (there.bit_length() - 1)


def _enough_images(stage: Stage, pixels: int) -> int:
    """Images of a step; of large ones, no more than make a larger step as fast per image."""
    return min(_batch(stage), max(_FEW, _PIXELS // pixels**2))


def _blank(images: ImageSet) -> ImageSet:
    """As many, of all classes, with the same labels; none is read from anywhere."""
    chosen = images.subset(np.unique(np.linspace(0, len(images) - 1, min(_IMAGES, len(images))).astype(np.int64)))
    source = BlankSource(len(images.source), images.source.channels, images.source.size)
    return ImageSet(source, chosen.rows, chosen.labels)


def _timed(engine: TrainingEngine, stage: Stage, images: ImageSet, batch: int) -> float:
    """Seconds per image of steps with so many images; the first of them, which sets things up, does not count."""
    began, trained, steps, last = 0.0, 0, 0, 0.0

    def watch(event: Event) -> None:
        nonlocal began, trained, steps, last
        if isinstance(event, StepDone):
            last = _now(engine.device)
            if steps == 0:
                began = last
            else:
                trained += event.images
            steps += 1
            if steps > 2 and last - began >= _ENOUGH:
                raise _Enough

    # At a rate of nothing nets stay as they are, however long.
    rates = {"lr": 1e-12, "lr_end": 0.0, "warmup": 0, "curve": "constant"}
    schedule = stage.schedule.model_copy(update={"batch_size": batch, "epochs": 10**6, **rates})
    engine.listener = watch
    with suppress(_Enough):
        engine.fit(replace(stage, data=images, schedule=schedule))
    return (last - began) / max(1, trained)


def _repeated(act: Callable[[int], None], count: int, most: int, device: torch.device) -> float:
    """Seconds per image of something done to so many images; to more of them, up to the most, where it is fast."""
    act(count)
    for _ in range(_TRIES):
        began = _now(device)
        act(count)
        pace = (_now(device) - began) / count
        wanted = min(most, max(count, int(_ENOUGH / max(pace, 1e-9))))
        if wanted < 1.5 * count:
            break
        count = wanted
    return pace


def as_it_is(images: Tensor, draws: Draws) -> Tensor:
    """A step of augmentation that changes nothing."""
    return images


def _now(device: torch.device) -> float:
    """A clock of seconds, after what the device was told to do is done."""
    if device.type == "cpu":
        # Of this thread, which takes part in all that several threads compute.
        return time.thread_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
