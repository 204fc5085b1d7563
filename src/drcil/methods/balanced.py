"""Sets of images that are much the same for all classes: balanced ones, and those held back.

The memory's largest class says how many. A class that has fewer gives what it has, and leaves the others alone.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from ..data.sources.imageset import ImageSet, Int64
from ..stages import Engine
from ..streams.memory import herded
from ..streams.stream import Task


def balanced_set(net: nn.Module, task: Task, engine: Engine) -> ImageSet:
    """The memory, and of each new class what herding would keep of as many images as its largest class has."""
    quota = int(task.memory.counts(task.old).max())
    return task.memory.join(herded(task.new, quota, partial(engine.features, net)))


def held_counts(counts: Int64, memory: Int64, share: float) -> Int64:
    """How many of so many images of each class are held back, where the memory has so many of each old one.

    This share of the memory's largest class; of a class that has fewer images, this share of its own. At least one.
    """
    held: Int64 = (share * np.minimum(counts, memory.max())).astype(np.int64)
    return held.clip(min=1)


def split_off(images: ImageSet, counts: Int64) -> tuple[ImageSet, ImageSet]:
    """The rest, and so many images of each class, chosen at random.

    A class that has no more images than that stays in the rest too, which would know nothing of it otherwise.
    """
    held, scarce = np.zeros(len(images), dtype=np.bool_), np.zeros(len(images), dtype=np.bool_)
    for label in np.unique(images.labels):
        positions = np.flatnonzero(images.labels == label)
        held[positions[torch.randperm(len(positions)).numpy()[: counts[label]]]] = True
        scarce[positions] = len(positions) <= counts[label]
    return images.subset(~held | scarce), images.subset(held)
