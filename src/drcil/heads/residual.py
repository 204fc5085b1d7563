"""The residual classifier (RC): every task leaves a branch behind, and old and new knowledge vote together."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..arguments import one_of
from .base import HEADS, Head, Logits, grown_linear, linear_of, new_linear
from .branches import BranchKind, ConvInit, build_branches


@HEADS.register("rc")
class ResidualHead(Head):
    """RC: one shared classifier on a new branch and on the mean of all old branches, which are kept and frozen.

    With b_t the new branch's output and b̄ the mean of the old ones', both go through the one classifier H:
    ℓ = H(b_t), ℓ' = H(b̄), and the fused logits are (ℓ + ℓ')/2 (``fusion="mean"``, the paper) or ℓ + ℓ'
    (``fusion="sum"``, the published program). At task 1 there is no past and the fused logits are ℓ.

    ``branch`` is a batch normalisation (``"bn"``, the program) or a 1×1 convolution (``"conv"``, the paper), and
    ``conv_init`` how a fresh convolution starts. ``new_branch`` says how the new branch enters a task: ``"keep"``
    continues from the last one, ``"reset"`` starts afresh.
    """

    # Pooled features would do, but for a normalisation in training: its statistics are those of all positions.
    reads = "last"

    def __init__(
        self,
        channels: int,
        branch: BranchKind = "bn",
        fusion: Literal["mean", "sum"] = "mean",
        new_branch: Literal["keep", "reset"] = "keep",
        conv_init: ConvInit = "kaiming",
    ) -> None:
        super().__init__(channels)
        one_of("fusion", fusion, ("mean", "sum"))
        one_of("start of the new branch", new_branch, ("keep", "reset"))
        self.branch, self.fusion, self.new_branch, self.conv_init = branch, fusion, new_branch, conv_init
        self.branches = build_branches(branch, channels, conv_init)
        # A layer without rows rather than none: it remembers the device and dtype the head was moved to.
        self.classifier = new_linear(channels, 0)

    @staticmethod
    def next_past(old: Tensor, new: Tensor) -> Tensor:
        """The old branches of the next task: the stack of this task's, and its new one behind them."""
        return torch.cat([old, new.unsqueeze(0)])

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        if self.tasks:
            self.branches.remember(self.next_past)
            if self.new_branch == "reset":
                self.branches.reset()
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        new_branch, old_branch = self.branches(features)
        new = self.classifier(new_branch)
        if old_branch is None:
            return Logits(fused=new, new=new)
        old = self.classifier(old_branch)
        fused = new + old
        return Logits(fused=fused / 2 if self.fusion == "mean" else fused, new=new, old=old)

    def fold(self) -> nn.Linear:
        """The fused logits as one layer on pooled features: the sum (or mean) of H ∘ branch."""
        weight = self.classifier.weight.detach().to("cpu", torch.float64)
        bias = self.classifier.bias.detach().to("cpu", torch.float64)
        branches = [branch for branch in (self.branches.new(), self.branches.old()) if branch is not None]
        layers = [self.branches.affine(branch) for branch in branches]
        share = 1 / len(layers) if self.fusion == "mean" else 1.0
        folded = linear_of(
            share * sum((weight @ matrix for matrix, _ in layers), start=torch.zeros_like(weight)),
            share * sum((weight @ offset + bias for _, offset in layers), start=torch.zeros_like(bias)),
        )
        like = self.classifier.weight
        return folded.to(like.device, like.dtype).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "fusion": self.fusion,
            "new_branch": self.new_branch,
            "conv_init": self.conv_init,
        }

    def frozen_parameters(self) -> int:
        return sum(stack.numel() for stack in self.branches.stacks().values())
