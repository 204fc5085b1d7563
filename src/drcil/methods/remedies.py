"""Remedies for a classifier that favours the classes it saw most of: weight aligning, balanced fine-tuning.

(The third, logit adjustment, is part of the loss: ``Pipeline.adjustment``.)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..data.imageset import ImageSet, Int64
from ..heads.base import new_linear
from ..memory import first_of_each_class, herd
from ..nets.net import Net
from ..stages import Group, Schedule, Stage
from ..streams import Task
from .base import Engine, cross_entropy


def classifier_of(net: Net) -> nn.Linear:
    """The fully connected layer that all heads of the pipelines end in."""
    classifier = net.head.get_submodule("classifier")
    assert isinstance(classifier, nn.Linear)
    return classifier


@torch.no_grad()
def align_weights(classifier: nn.Linear, old: int) -> None:
    """w_c := w_c · mean_{old} ‖w‖ / mean_{new} ‖w‖ for the new rows; biases stay. Afterwards the mean norms agree."""
    norms = classifier.weight.norm(dim=1)
    classifier.weight[old:] *= norms[:old].mean() / norms[old:].mean()


def balanced_quota(new: Int64, memory: Int64) -> int:
    """What a balanced set has of each class, from the counts of each new and each old one."""
    return int(min(memory.max(), new.min()))


def balanced_images(new: Int64, memory: Int64) -> int:
    """How many images a balanced set has, from the same counts."""
    quota = balanced_quota(new, memory)
    return int(np.minimum(memory, quota).sum()) + quota * len(new)


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


def fine_tune_classifier(net: Net, task: Task, engine: Engine, schedule: Schedule, reset: bool) -> None:
    """Train the classifier alone, on equally many images of every class; the rest is frozen and in evaluation mode."""
    classifier = classifier_of(net)
    if reset:
        fresh = new_linear(classifier.in_features, classifier.out_features)
        classifier.load_state_dict(fresh.state_dict())
    engine.fit(
        Stage(
            "balancing",
            net,
            balanced_set(net, task, engine),
            cross_entropy,
            schedule,
            groups=[Group(list(classifier.parameters()))],
            frozen=[net],
        )
    )
