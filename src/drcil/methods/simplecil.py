"""SimpleCIL: the features of a backbone that stays as it is, and the mean of each class as its classifier."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..heads.cosine import CosineHead
from ..heads.head import Head
from ..nets.parts import PARTS, Part
from .catalog import method
from .feature_statistics import OnePassMethod, OnePassSettings
from .nearest_mean import class_sums

COUNTS = "counts"


@PARTS.register("class-counts")
class ClassCounts(Part):
    """How many images each class was learnt from."""

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.values = nn.Buffer(torch.zeros(classes, dtype=torch.int64))

    def grow(self, new_classes: int) -> None:
        """Make room for classes that nothing was learnt of yet."""
        self.values = nn.Buffer(torch.cat([self.values, self.values.new_zeros(new_classes)]))

    def forget(self, classes: Collection[int]) -> None:
        self.values = nn.Buffer(self.values[[label for label in range(len(self.values)) if label not in classes]])

    def describe(self) -> dict[str, Any]:
        return {"classes": len(self.values)}


@method(
    "simplecil",
    paper="Zhou et al., Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity "
    "are All You Need, IJCV",
    year=2024,
)
class SimpleCil(OnePassMethod):
    """Class means of features as a cosine classifier; a random backbone is trained on task 1 alone; no memory."""

    Settings = OnePassSettings
    head = "cosine"

    def new_head(self, channels: int) -> Head:
        return CosineHead(channels)

    @torch.no_grad()
    def add_features(self, features: Tensor, labels: Tensor) -> None:
        """w_c = mean of the features of class c: with n images before and m now, (n w_c + Σ f) / (n + m).

        Rows of all other classes do not change.
        """
        self.parts.setdefault(COUNTS, ClassCounts())
        head, counts = self.net.head, self.part(COUNTS, ClassCounts)
        assert isinstance(head, CosineHead)
        old, classes = len(head.old_rows), head.classes
        counts.grow(classes - len(counts.values))
        before, now = counts.values, torch.bincount(labels, minlength=classes)
        present = torch.nonzero(now).flatten()
        if not before[present[present < old]].all():
            raise UserError("the model does not know how many images its class means are of, so none can be added")
        sums = class_sums(features, labels, torch.zeros(classes, features.shape[1], dtype=torch.float64), Tensor.double)
        previous_sums = before[:, None] * head.rows()[:, 0].cpu().double()
        means = (previous_sums + sums) / (before + now).clamp(min=1)[:, None]
        for rows, numbers, first in (
            (head.old_rows, present[present < old], 0),
            (head.new_rows, present[present >= old], old),
        ):
            rows[numbers.to(rows.device) - first, 0] = means[numbers].to(rows)
        before.add_(now)
