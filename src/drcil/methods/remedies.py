"""Remedies for a classifier that favours the classes it saw most of: weight aligning, balanced fine-tuning.

(The third, logit adjustment, is part of the loss: ``Pipeline.adjustment``.)
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..data.imageset import ImageSet
from ..errors import UserError
from ..heads.base import new_linear
from ..memory import herd
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
    classifier.weight[old:] *= norms[:old].mean() / norms[old:].mean()


def balanced_set(net: nn.Module, task: Task, engine: Engine) -> ImageSet:
    """The memory, and as many images of each new class as the memory has of an old one: those herding would keep."""
    if not len(task.memory):
        raise UserError("balanced fine-tuning needs images of old classes, but the memory is empty; give a --memory")
    kept = task.memory.counts(task.old)
    quota = int(kept[kept > 0].min())
    features = engine.features(net, task.new)
    chosen = []
    for label in range(task.old, task.total):
        positions = np.flatnonzero(task.new.labels == label)
        chosen.append(positions[herd(features[torch.from_numpy(positions)], quota).numpy()])
    return task.memory.join(task.new.subset(np.concatenate(chosen)))


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
            _cross_entropy,
            schedule,
            groups=[Group(list(classifier.parameters()))],
            frozen=[net],
        )
    )


def _cross_entropy(output: Output, teachers: object, batch: Batch) -> Losses:
    return {"classification": Term(F.cross_entropy(output.logits.fused, batch.labels))}
