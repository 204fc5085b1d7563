"""Scaled logits: any head, with a learnt factor per class."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from .head import Head, Logits, linear_of


class Scales(nn.Module):
    """A learnt factor per class: z'_c = v_c z_c. New classes start with 1, which changes nothing."""

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(classes))

    def grow(self, new_classes: int) -> None:
        """Open a task: its classes start with 1, all other factors stay the same bit for bit."""
        self.values = nn.Parameter(torch.cat([self.values.detach(), self.values.new_ones(new_classes)]))

    def forget(self, classes: Collection[int]) -> None:
        """Remove the factors of classes."""
        columns = [column for column in range(len(self.values)) if column not in classes]
        self.values = nn.Parameter(self.values.detach()[columns])

    def forward(self, logits: Tensor) -> Tensor:
        return self.values * logits


class ScaledHead(Head):
    """A head with scales on its logits. It shares both with their owners and is not registered by name."""

    def __init__(self, head: Head, scales: Scales) -> None:
        super().__init__(head.channels)
        self.head, self.scales = head, scales
        self.tasks = head.tasks
        self.reads = head.reads  # type: ignore[misc] # As the inner head.

    def grow(self, new_classes: int) -> None:
        self.head.grow(new_classes)
        self.scales.grow(new_classes)

    def forget(self, classes: Collection[int]) -> None:
        self.head.forget(classes)
        self.scales.forget(classes)

    def forward(self, features: Tensor) -> Logits:
        """Fused logits are scaled; those of branches and by-products are not."""
        logits: Logits = self.head(features)
        return logits._replace(fused=self.scales(logits.fused))

    def fold(self) -> nn.Module:
        """One layer with rows v_c w_c and biases v_c b_c if the inner head is affine; otherwise the scales after it."""
        inner, values = self.head.fold(), self.scales.values.detach()
        if not isinstance(inner, nn.Linear):
            return FoldedScaled(inner, values.clone())
        weight, bias, scale = (
            tensor.detach().to("cpu", torch.float64) for tensor in (inner.weight, inner.bias, values)
        )
        folded = linear_of(scale[:, None] * weight, scale * bias)
        return folded.to(inner.weight.device, inner.weight.dtype).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {"head": self.head.describe()}

    def class_parameters(self) -> list[nn.Parameter]:
        return self.head.class_parameters()

    def frozen_parameters(self) -> int:
        return self.head.frozen_parameters()


class FoldedScaled(nn.Module):
    """Result of ``ScaledHead.fold`` if the inner head is not affine."""

    def __init__(self, inner: nn.Module, scales: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.scales = nn.Buffer(scales)

    def forward(self, features: Tensor) -> Tensor | Logits:
        logits: Tensor | Logits = self.inner(features)
        if isinstance(logits, Logits):
            return logits._replace(fused=self.scales * logits.fused)
        return self.scales * logits
