"""Residual classifiers RC and DRC, their branches, and the batch-norm control.

A branch is linear in its tensors, so branches are averaged as tensors: the mean of their outputs is the output of their
mean. A branch is also affine in the features, at each position alike, so it commutes with average pooling: branches act
on pooled vectors, not on maps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import WrongValueError, check_choice
from .head import HEADS, Head, Logits, as_map, grown_linear, linear_of, new_linear, pool

Tensors = Mapping[str, Tensor]
BranchKind = Literal["conv", "bn"]
ConvInit = Literal["identity", "kaiming"]


class Branches(nn.Module, ABC):
    """A new branch (parameters ``new_*``) and a stack of old ones (buffers ``old_*``, one row per branch).

    Old branches are buffers, so that neither momentum nor weight decay can change them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        fresh = self.fresh()
        self.names = tuple(fresh)
        for name, tensor in fresh.items():
            self.register_parameter(f"new_{name}", nn.Parameter(tensor))
            self.register_buffer(f"old_{name}", tensor.new_empty(0, *tensor.shape))

    @abstractmethod
    def fresh(self) -> dict[str, Tensor]:
        """The initial tensors of a branch."""

    @abstractmethod
    def identity(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """The tensors of a branch that returns features with these statistics unchanged."""

    @abstractmethod
    def prepare(self, features: Tensor) -> Tensor:
        """Pooled vectors, the input of every branch."""

    @abstractmethod
    def apply_branch(self, branch: Tensors, prepared: Tensor) -> Tensor:
        """The output of one branch, (N, channels)."""

    @abstractmethod
    def affine(self, branch: Tensors) -> tuple[Tensor, Tensor]:
        """Matrix and offset of a branch as a function of pooled features in evaluation mode, in double precision."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Output of the new branch, and the mean output b̄ of the old ones (None without old branches)."""
        prepared = self.prepare(features)
        old = self.old()
        return self.apply_branch(self.new(), prepared), None if old is None else self.apply_branch(old, prepared)

    def new(self) -> dict[str, Tensor]:
        """The tensors of the new branch."""
        return {name: self.get_parameter(f"new_{name}") for name in self.names}

    def stacks(self) -> dict[str, Tensor]:
        """The tensors of the old branches, one row per branch."""
        return {name: self.get_buffer(f"old_{name}") for name in self.names}

    def old(self) -> dict[str, Tensor] | None:
        """The mean of the old branches; None if there are none."""
        means = {name: stack.mean(dim=0) for name, stack in self.stacks().items() if len(stack)}
        return means or None

    @torch.no_grad()
    def store_branch(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Store the new branch among the old ones: ``combine(old stack, new branch)`` is the next stack."""
        for name, stack in self.stacks().items():
            setattr(self, f"old_{name}", combine(stack, self.get_parameter(f"new_{name}")).clone())

    @torch.no_grad()
    def reset(self) -> None:
        """Initialise the new branch again."""
        for name, tensor in self.fresh().items():
            self.get_parameter(f"new_{name}").copy_(tensor)

    @torch.no_grad()
    def set_old_branch(self, **old: Tensor) -> None:
        """Make these tensors the only old branch."""
        if sorted(old) != sorted(self.names):
            raise WrongValueError(f"a branch has the tensors {', '.join(self.names)}, but {', '.join(old)} were given")
        for name, tensor in old.items():
            setattr(self, f"old_{name}", tensor.to(self.get_parameter(f"new_{name}")).clone().unsqueeze(0))


class ConvBranches(Branches):
    """1×1 convolutions without bias, b = ω f (Eq. 2): the branches of the paper."""

    def __init__(self, channels: int, init: ConvInit = "kaiming") -> None:
        self.init = init  # read by ``fresh`` while the branches are made
        super().__init__(channels)

    def fresh(self) -> dict[str, Tensor]:
        if self.init == "identity":
            return {"weight": torch.eye(self.channels)}
        # Linear gain: no ReLU follows a branch.
        return {"weight": nn.init.kaiming_normal_(torch.empty(self.channels, self.channels), nonlinearity="linear")}

    def identity(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        return {"weight": torch.eye(self.channels)}

    def prepare(self, features: Tensor) -> Tensor:
        return pool(features, self.channels)

    def apply_branch(self, branch: Tensors, prepared: Tensor) -> Tensor:
        return functional.linear(prepared, branch["weight"])

    def affine(self, branch: Tensors) -> tuple[Tensor, Tensor]:
        weight = branch["weight"].detach().to("cpu", torch.float64)
        return weight, weight.new_zeros(self.channels)


class NormBranches(Branches):
    """Batch normalisations, b = γ ẑ + β: the branches of the published program.

    All branches read the same positions and would have the same statistics, so they share one normalisation ẑ
    (``norm``); a branch is an affine pair (``scale`` γ, ``shift`` β).
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.norm = nn.BatchNorm2d(channels, affine=False)

    def fresh(self) -> dict[str, Tensor]:
        return {"scale": torch.ones(self.channels), "shift": torch.zeros(self.channels)}

    def identity(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        return {"scale": torch.sqrt(variance + self.norm.eps), "shift": mean.clone()}

    def prepare(self, features: Tensor) -> Tensor:
        # Fixed statistics commute with pooling; batch statistics are taken over all positions.
        inputs = features if self.norm.training else pool(features, self.channels)
        return pool(self.norm(as_map(inputs, self.channels)), self.channels)

    def apply_branch(self, branch: Tensors, prepared: Tensor) -> Tensor:
        return torch.addcmul(branch["shift"], branch["scale"], prepared)

    def affine(self, branch: Tensors) -> tuple[Tensor, Tensor]:
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale, shift, mean, variance = (
            tensor.detach().to("cpu", torch.float64) for tensor in (branch["scale"], branch["shift"], mean, variance)
        )
        scale = scale / torch.sqrt(variance + self.norm.eps)
        return torch.diag(scale), shift - scale * mean


def build_branches(kind: BranchKind, channels: int, conv_init: ConvInit) -> Branches:
    """Branches of this kind."""
    check_choice("branch initialisation", conv_init, get_args(ConvInit))
    check_choice("branch", kind, get_args(BranchKind))
    return ConvBranches(channels, conv_init) if kind == "conv" else NormBranches(channels)


@HEADS.register("rc")
class ResidualHead(Head):
    """RC: one classifier on a new branch and on the mean of all old branches, which are frozen.

    With b_t the output of the new branch and b̄ the mean output of the old ones, both pass the classifier H:
    ℓ = H(b_t), ℓ' = H(b̄) (Eq. 3 to 5). The fused logits are (ℓ + ℓ')/2 (``fusion="mean"``, Eq. 6 of the paper) or
    ℓ + ℓ' (``fusion="sum"``, the published program). At task 1 there is no old branch, and the fused logits are ℓ.

    ``branch`` is a batch normalisation (``"bn"``, the program) or a 1×1 convolution (``"conv"``, the paper), and
    ``conv_init`` its initialisation. ``new_branch``: the new branch of the next task continues from this one
    (``"keep"``) or is initialised again (``"reset"``).
    """

    # A normalisation in training computes its statistics over all positions.
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
        check_choice("fusion", fusion, ("mean", "sum"))
        check_choice("start of the new branch", new_branch, ("keep", "reset"))
        self.branch, self.fusion, self.new_branch, self.conv_init = branch, fusion, new_branch, conv_init
        self.branches = build_branches(branch, channels, conv_init)
        # A layer without rows instead of None: it has the device and dtype of the head.
        self.classifier = new_linear(channels, 0)

    @staticmethod
    def merge_branches(old: Tensor, new: Tensor) -> Tensor:
        """The old branches of the next task: those of this task, and its new branch."""
        return torch.cat([old, new.unsqueeze(0)])

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        if self.tasks:
            self.branches.store_branch(self.merge_branches)
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


@HEADS.register("drc")
class DynamicResidualHead(ResidualHead):
    """DRC: the residual classifier with two branches, a new one and a merged, frozen old one.

    At the start of task t, ω_{B'_{t-1}} = (ω_{B_{t-1}} + ω_{B'_{t-2}}) / 2 (Eq. 7), with B'_1 = B_1. Branches are
    linear, so the merged branch gives the previous logits of the whole head on old rows (``fusion="mean"``), or half of
    them (``"sum"``, from task 3 on).

    Drop-in: where a network ends in ``nn.Linear(512, classes)``, use ``DynamicResidualHead(512)``, call ``grow``
    at the start of each task, and read ``head(features).fused``.
    """

    @staticmethod
    def merge_branches(old: Tensor, new: Tensor) -> Tensor:
        """The old branch of the next task: the mean of the old and the new branch; at task 2 the new branch."""
        return (old + new) / 2 if len(old) else new.unsqueeze(0)


@HEADS.register("norm")
class NormHead(Head):
    """One batch normalisation with scale and shift before a fully connected layer: z = H(γ ẑ + β).

    The control of residual heads: their normalisation without an old branch.
    """

    reads = "last"

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.branches = NormBranches(channels)
        # A layer without rows instead of None: it has the device and dtype of the head.
        self.classifier = new_linear(channels, 0)

    def grow(self, new_classes: int) -> None:
        self.classifier = grown_linear(self.classifier, self.channels, new_classes)
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        normalised, _ = self.branches(features)
        return Logits(self.classifier(normalised))

    def fold(self) -> nn.Linear:
        like = self.classifier.weight
        weight, bias = (tensor.detach().to("cpu", torch.float64) for tensor in (like, self.classifier.bias))
        matrix, offset = self.branches.affine(self.branches.new())
        return linear_of(weight @ matrix, weight @ offset + bias).to(like.device, like.dtype).requires_grad_(False)

    def options(self) -> dict[str, Any]:
        return {}
