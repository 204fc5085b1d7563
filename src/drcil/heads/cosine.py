"""Cosine classifier: one or several directions per class; lengths have no effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import check_int
from .head import HEADS, SIZES, Head, Logits, pool, require_classes


@HEADS.register("cosine")
class CosineHead(Head):
    """Cosines to learnt directions, times a learnt scale.

    Class c has P rows w_cp (``proxies``). With a_cp = cos(f, w_cp), its cosine is a_c = Σ_p softmax_p(a_cp) · a_cp
    and its logit η a_c, where η is one number for all classes. P = 1 is LUCIR's classifier (a_c = cos(f, w_c)), P = 10
    PODNet's local similarity classifier.

    Rows of earlier tasks and of the newest task are two parameters, so that a stage can train only the new ones. Losses
    with a margin read the cosines (``extras["cosines"]``) and the scale (``extras["scale"]``).
    """

    def __init__(self, channels: int, proxies: int = 1) -> None:
        super().__init__(channels)
        self.proxies = check_int("the number of proxies of a class", proxies, SIZES)
        self.old_rows = nn.Parameter(torch.empty(0, proxies, channels))
        self.new_rows = nn.Parameter(torch.empty(0, proxies, channels))
        self.scale = nn.Parameter(torch.ones(()))

    def grow(self, new_classes: int) -> None:
        """New rows become old ones, bit for bit; the next ones are drawn uniformly in ±1/sqrt(channels)."""
        require_classes(new_classes)
        bound = 1 / math.sqrt(self.channels)
        fresh = torch.empty(new_classes, self.proxies, self.channels).uniform_(-bound, bound)
        self.old_rows = nn.Parameter(self.rows().detach())
        self.new_rows = nn.Parameter(fresh.to(self.old_rows))
        self.tasks.append(new_classes)

    def keep(self, columns: Sequence[int]) -> None:
        old = len(self.old_rows)
        self.old_rows, self.new_rows = (
            nn.Parameter(rows.detach()[[column - first for column in columns if 0 <= column - first < len(rows)]])
            for rows, first in ((self.old_rows, 0), (self.new_rows, old))
        )

    def rows(self) -> Tensor:
        """The directions of all classes, (classes, proxies, channels)."""
        return torch.cat([self.old_rows, self.new_rows])

    def forward(self, features: Tensor) -> Logits:
        cosines = class_cosines(pool(features, self.channels), functional.normalize(self.rows(), dim=2))
        return Logits(self.scale * cosines, extras={"cosines": cosines, "scale": self.scale})

    def fold(self) -> FoldedCosine:
        rows = self.rows().detach()
        directions = functional.normalize(rows.to("cpu", torch.float64), dim=2).to(rows.device, rows.dtype)
        return FoldedCosine(directions, self.scale.detach().clone())

    def options(self) -> dict[str, Any]:
        return {"proxies": self.proxies}


class FoldedCosine(nn.Module):
    """Result of ``CosineHead.fold``: its rows have unit length."""

    def __init__(self, directions: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.directions = nn.Buffer(directions)
        self.scale = nn.Buffer(scale)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * class_cosines(pool(features, self.directions.shape[2]), self.directions)


def class_cosines(features: Tensor, directions: Tensor) -> Tensor:
    """a_c = Σ_p softmax_p(a_cp) · a_cp of every sample and class, for directions (classes, proxies, channels)."""
    # In full precision also under autocast: cosines of similar classes differ by little.
    with torch.autocast(features.device.type, enabled=False):
        unit = functional.normalize(features.to(directions.dtype), dim=1)
        cosines = functional.linear(unit, directions.flatten(0, 1))
    if directions.shape[1] == 1:
        return cosines
    # Not len(features): exports leave the number of images open.
    cosines = cosines.view(features.shape[0], *directions.shape[:2])
    return (cosines.softmax(dim=2) * cosines).sum(dim=2)
