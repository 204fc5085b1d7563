"""The benchmark of a trained classifier: what is left of the dynamic residual head when it is used."""

from __future__ import annotations

from collections import Counter

from torch import nn

from drcil.heads import DynamicResidualHead, LinearHead

from .rows import Measurement, benchmark
from .scene import Scene


@benchmark(
    "drc-inference",
    "tensors in which the folded dynamic residual head differs from a plain linear head after ten tasks",
    target=0.0,
    better="lower",
    unit="tensors",
)
def drc_inference(scene: Scene) -> Measurement:
    folded, plain = (_after_ten_tasks(head).fold() for head in (DynamicResidualHead(64), LinearHead(64)))
    ours, theirs = (Counter(tuple(tensor.shape) for tensor in one.state_dict().values()) for one in (folded, plain))
    other = (ours - theirs) + (theirs - ours)
    odd = other.total() + (type(folded) is not nn.Linear)
    return Measurement(float(odd), f"{type(folded).__name__} of {', '.join(map(str, ours))}")


def _after_ten_tasks(head: DynamicResidualHead | LinearHead) -> DynamicResidualHead | LinearHead:
    for _ in range(10):
        head.grow(10)
    return head
