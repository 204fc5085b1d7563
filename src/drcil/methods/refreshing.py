"""How a classifier is balanced after more images of classes that it knows: gently, on exemplars of all classes."""

from __future__ import annotations

from collections.abc import Mapping

from ..data.sources.imageset import ImageSet
from ..errors import UserError
from ..nets.net import Net
from ..schedules import Schedule
from ..stages import Group, Stage
from ..streams.samplers import class_balanced
from .objectives import cross_entropy

STAGE = "refresh"
_EPOCHS, _RATE = 1 / 2, 1 / 5
"""Of the first task's: the classifier is good already and shall stay near to what it is."""


def balancing(net: Net, exemplars: ImageSet, schedules: Mapping[str, Schedule]) -> Stage:
    """Train the classifier of a net by images of all classes alike; the rest is frozen, all in evaluation mode."""
    if "first" not in schedules:
        raise UserError("the method has no schedule 'first', from which that of more images would follow")
    return Stage(
        STAGE,
        net,
        exemplars,
        cross_entropy,
        gentle(schedules["first"]),
        groups=[Group(net.head.class_parameters())],
        frozen=[net],
        sampler=class_balanced,
        # So that every image goes through the backbone once: seconds instead of minutes, and no less accurate.
        augment=False,
    )


def gentle(first: Schedule) -> Schedule:
    """As in the first task, for half of its epochs at a fifth of its rate, which falls to zero."""
    return first.model_copy(
        update={
            "epochs": max(1, round(_EPOCHS * first.epochs)),
            "lr": _RATE * first.lr,
            "curve": "cosine",
            "milestones": (),
            "lr_end": 0.0,
            "warmup": 0,
        }
    )
