"""Balanced subsets, weight aligning, balanced fine-tuning.

The memory's largest class sets the number. Of a class with fewer images, all are used; other classes are unaffected.

(Those that act while a classifier is trained are part of its stages: ``Pipeline``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..data.image_set import ImageSet, Int64
from ..errors import UserError
from ..heads.head import new_linear
from ..nets.net import Net, Output
from ..stages import Batch, Engine, Losses, ParamGroup, Schedule, Stage, Term
from ..streams.memory import select_by_herding
from ..streams.stream import Task


def balanced_set(net: nn.Module, task: Task, engine: Engine) -> ImageSet:
    """The memory, and of each new class what herding would keep of as many images as its largest class has."""
    quota = int(task.memory.counts(task.old).max())
    return task.memory.join(select_by_herding(task.new, quota, partial(engine.features, net)))


def held_out_counts(counts: Int64, memory: Int64, share: float) -> Int64:
    """The number of images of each class to hold out, from the images of each class and the exemplars of old classes.

    This share of the memory's largest class; of a class that has fewer images, this share of them. At least one.
    """
    held_out: Int64 = (share * np.minimum(counts, memory.max())).astype(np.int64)
    return held_out.clip(min=1)


def split_off(images: ImageSet, counts: Int64) -> tuple[ImageSet, ImageSet]:
    """The rest, and ``counts`` randomly selected images of each class.

    A class that has no more images than that stays in the rest too, which would otherwise lack the class.
    """
    held_out, scarce = np.zeros(len(images), dtype=np.bool_), np.zeros(len(images), dtype=np.bool_)
    for label in np.unique(images.labels):
        positions = np.flatnonzero(images.labels == label)
        held_out[positions[torch.randperm(len(positions)).numpy()[: counts[label]]]] = True
        scarce[positions] = len(positions) <= counts[label]
    return images.subset(~held_out | scarce), images.subset(held_out)


Remedy = Literal["la", "bft", "wa", "cb", "focal", "balanced-sampling"]
REMEDIES: Mapping[Remedy, str] = {
    "la": "Logit adjustment: frequent classes must win by more in training",
    "bft": "Balanced fine-tuning of the classifier after training",
    "wa": "Weight aligning: new rows get the mean length of old ones",
    "cb": "Class-balanced loss: rare classes weigh more, by effective number",
    "focal": "Focal loss: samples that are known well count less",
    "balanced-sampling": "Every class equally often in training, four images in a row",
}
"""What a pipeline can take against a classifier that favours frequent classes."""


def classifier_of(net: Net) -> nn.Linear:
    """The fully connected layer that a head ends in."""
    classifier = getattr(net.head, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        raise UserError(
            f"head '{net.head.describe()['name']}' has no fully connected layer 'classifier', which the method or one "
            "of its remedies works on; choose another head"
        )
    return classifier


@torch.no_grad()
def align_weights(classifier: nn.Linear, old: int) -> None:
    """w_c := w_c · mean_{old} ‖w‖ / mean_{new} ‖w‖ for the new rows; biases stay. Afterwards the mean norms agree."""
    norms = classifier.weight.norm(dim=1)
    # Rows that are all zero, which clamping can make them, have no length to be changed.
    classifier.weight[old:] *= norms[:old].mean() / norms[old:].mean().clamp(min=1e-12)


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

    data, groups = balanced_set(net, task, engine), [ParamGroup(list(layer.parameters()))]
    engine.fit(Stage(name, net, data, objective, schedule, groups=groups, frozen=[net]))
