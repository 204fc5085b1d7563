"""Remedies for a classifier that favours the classes it saw most of: weight aligning, balanced and held-back images.

(Another, logit adjustment, is part of the loss: ``Pipeline.adjustment``.)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..data.imageset import ImageSet, Int64
from ..heads.base import new_linear
from ..memory import balanced_quota, first_of_each_class, herd
from ..nets.net import Net
from ..stages import Batch, Group, Losses, Output, Schedule, Stage, Term
from ..streams import Task
from .base import Engine


def classifier_of(net: Net) -> nn.Linear:
    """The fully connected layer that all heads of the pipelines end in."""
    classifier = net.head.get_submodule("classifier")
    assert isinstance(classifier, nn.Linear)
    return classifier


@torch.no_grad()
def align_weights(classifier: nn.Linear, old: int) -> None:
    """w_c := w_c · mean_{old} ‖w‖ / mean_{new} ‖w‖ for the new rows; biases stay. Afterwards the mean norms agree."""
    norms = classifier.weight.norm(dim=1)
    # Rows that are all zero, which clamping can make them, have no length to be changed.
    classifier.weight[old:] *= norms[:old].mean() / norms[old:].mean().clamp(min=1e-12)


def balanced_set(net: nn.Module, task: Task, engine: Engine) -> ImageSet:
    """Equally many images of every class: the memory, and of each new class what herding would keep of so many.

    How many is what the memory has of its largest class; classes that have fewer give all they have, and no class
    gives more than the smallest new one has.
    """
    quota = balanced_quota(task.new.counts(task.total)[task.old :], task.memory.counts(task.old))
    features = engine.features(net, task.new)
    chosen = []
    for label in range(task.old, task.total):
        positions = np.flatnonzero(task.new.labels == label)
        chosen.append(positions[herd(features[torch.from_numpy(positions)], quota).numpy()])
    return first_of_each_class(task.memory, quota).join(task.new.subset(np.concatenate(chosen)))


def held_quota(new: Int64, memory: Int64, share: float) -> int:
    """How many images of each class are held back: this share of the smallest class, and at least one."""
    return max(1, int(share * min(memory.min(), new.min())))


def split_counts(counts: Int64, quota: int) -> tuple[Int64, Int64]:
    """What ``split_off`` leaves and takes of classes with so many images."""
    return np.where(counts > quota, counts - quota, counts), np.minimum(counts, quota)


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


def renew(classifier: nn.Linear) -> None:
    """Let a classifier start afresh."""
    fresh = new_linear(classifier.in_features, classifier.out_features)
    classifier.load_state_dict(fresh.state_dict())


def fine_tune(
    name: str,
    net: Net,
    layer: nn.Module,
    task: Task,
    engine: Engine,
    schedule: Schedule,
    temperature: float = 1.0,
) -> None:
    """Train one layer of a net on equally many images of every class; the rest is frozen, all in evaluation mode."""

    def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        """CE(z / T, y)."""
        return {"classification": Term(F.cross_entropy(output.logits.fused / temperature, batch.labels))}

    data, groups = balanced_set(net, task, engine), [Group(list(layer.parameters()))]
    engine.fit(Stage(name, net, data, objective, schedule, groups=groups, frozen=[net]))
