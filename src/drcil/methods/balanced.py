"""Sets of images that are equal for all classes: balanced ones, and those held back."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from ..data.sources.imageset import ImageSet, Int64
from ..stages import Engine
from ..streams.memory import first_of_each_class, herded
from ..streams.stream import Task


def balanced_set(net: nn.Module, task: Task, engine: Engine) -> ImageSet:
    """Equally many images of every class: the memory, and of each new class what herding would keep of so many.

    How many is what the memory has of its largest class; classes that have fewer give all they have, and no class
    gives more than the smallest new one has.
    """
    quota = balanced_quota(task.new.counts(task.total)[task.old :], task.memory.counts(task.old))
    chosen = herded(task.new, quota, partial(engine.features, net))
    return first_of_each_class(task.memory, quota).join(chosen)


def held_quota(new: Int64, memory: Int64, share: float) -> int:
    """How many images of each class are held back: this share of the smallest class, and at least one."""
    return max(1, int(share * min(memory.min(), new.min())))


def split_off(images: ImageSet, quota: int) -> tuple[ImageSet, ImageSet]:
    """The rest, and so many images of every class, chosen at random.

    A class that has no more than the quota stays in the rest too, which would know nothing of it otherwise.
    """
    held, scarce = np.zeros(len(images), dtype=np.bool_), np.zeros(len(images), dtype=np.bool_)
    for label in np.unique(images.labels):
        positions = np.flatnonzero(images.labels == label)
        held[positions[torch.randperm(len(positions)).numpy()[:quota]]] = True
        scarce[positions] = len(positions) <= quota
    return images.subset(~held | scarce), images.subset(held)


def balanced_quota(new: Int64, memory: Int64) -> int:
    """What a balanced set has of each class, from the counts of each new and each old one."""
    return int(min(memory.max(), new.min()))
