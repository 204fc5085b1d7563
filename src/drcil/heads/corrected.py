"""The corrected classifier: a fully connected layer, and one affine map of the logits for each task."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from .base import HEADS, Logits, linear_of
from .linear import LinearHead


@HEADS.register("corrected")
class CorrectedHead(LinearHead):
    """One fully connected layer with an affine pair per task: z'_c = α_t z_c + β_t for the classes c of task t.

    A task opens with the pair (1, 0), which changes nothing. Pairs do not require a gradient, so that they are
    trained only by a stage that names them.
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
        """The pair (α, β) of the task that was opened last."""
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
        """Rows α_t w_c and biases α_t b_c + β_t: the correction is affine, and so is the layer before it."""
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
