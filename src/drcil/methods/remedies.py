"""Remedies for a classifier that favours the classes it saw most of: weight aligning, balanced fine-tuning.

(Those that act while a classifier is trained are part of its stages: ``Pipeline``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import UserError
from ..heads.base import new_linear
from ..nets.net import Net
from ..nets.output import Output
from ..schedules import Schedule
from ..stages import Batch, Engine, Group, Losses, Stage, Term
from ..streams.stream import Task
from .balanced import balanced_set

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

    data, groups = balanced_set(net, task, engine), [Group(list(layer.parameters()))]
    engine.fit(Stage(name, net, data, objective, schedule, groups=groups, frozen=[net]))
