"""What a net makes of a batch of images, and how class scores are read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..heads.base import Logits
from .features import Features


class Output(NamedTuple):
    """What a net makes of a batch."""

    logits: Logits
    features: Features


def fused_logits(output: Output) -> Tensor:
    """What the head answers: the usual scores."""
    return output.logits.fused


@dataclass(frozen=True)
class Readout:
    """A named way to turn a trained method into class scores: whose output is read, and how."""

    net: nn.Module
    scores: Callable[[Output], Tensor] = fused_logits
    """A function, or a part of the method where reading needs something learnt."""
