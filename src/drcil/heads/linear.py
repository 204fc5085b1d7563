"""Linear head, and the linear head with one affine correction per task (BiC)."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from .head import HEADS, Head, Logits, grown_linear, linear_of, new_linear, pool


@HEADS.register("linear")
class LinearHead(Head):
    """One fully connected layer on pooled features."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        # A layer without rows instead of None: it has the device and dtype of the head.
        self.classifier = new_linear(channels, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(self.classifier(pool(features, self.channels)))

    def fold(self) -> nn.Linear:
        return copy.deepcopy(self.classifier).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {}


@HEADS.register("corrected")
class CorrectedHead(LinearHead):
    """One fully connected layer with an affine pair per task: z'_c = α_t z_c + β_t for the classes c of task t.

    A task starts with the pair (1, 0), which changes nothing. Pairs do not require a gradient: only a stage that names
    them in its groups trains them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.pairs = nn.ParameterList()

    def grow(self, new_classes: int) -> None:
        super().grow(new_classes)
        like = self.classifier.weight
        neutral = torch.tensor([1.0, 0.0], device=like.device, dtype=like.dtype)
        self.pairs.append(nn.Parameter(neutral, requires_grad=False))

    @torch.no_grad()
    def forget(self, classes: Collection[int]) -> None:
        super().forget(classes)
        for pair, size in zip(self.pairs, self.tasks, strict=True):
            if size == 0:
                pair.copy_(pair.new_tensor([1.0, 0.0]))

    @property
    def newest(self) -> nn.Parameter:
        """The pair (α, β) of the newest task."""
        pair: nn.Parameter = self.pairs[-1]
        return pair

    @torch.no_grad()
    def neutralise(self) -> None:
        """Make every pair (1, 0) again."""
        for pair in self.pairs:
            pair.copy_(pair.new_tensor([1.0, 0.0]))

    def forward(self, features: Tensor) -> Logits:
        scale, shift = self._per_class()
        return Logits(torch.addcmul(shift, scale, super().forward(features).fused))

    def fold(self) -> nn.Linear:
        """One layer with rows α_t w_c and biases α_t b_c + β_t."""
        like = self.classifier.weight
        weight, bias, scale, shift = (
            tensor.detach().to("cpu", torch.float64) for tensor in (like, self.classifier.bias, *self._per_class())
        )
        folded = linear_of(scale[:, None] * weight, torch.addcmul(shift, scale, bias))
        return folded.to(like.device, like.dtype).requires_grad_(False)

    def _per_class(self) -> tuple[Tensor, Tensor]:
        """α and β of every class."""
        pairs = torch.cat([pair.expand(size, 2) for pair, size in zip(self.pairs, self.tasks, strict=True)])
        return pairs[:, 0], pairs[:, 1]
