"""The branch layers of a residual head: one new branch that learns, and the old ones, frozen.

A branch of either kind is linear in its own tensors, so several branches of a kind can be added and averaged as
tensors: the mean of their outputs *is* the output of their mean. Both kinds are also affine in the features, at
each position alike, so they commute with average pooling: they act on pooled vectors, never on maps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..arguments import one_of
from ..errors import WrongValueError
from .base import as_map, pool

Tensors = Mapping[str, Tensor]
BranchKind = Literal["conv", "bn"]
ConvInit = Literal["identity", "kaiming"]


class Branches(nn.Module, ABC):
    """A new branch (parameters ``new_*``) and a stack of old ones (buffers ``old_*``, one row per branch).

    The old ones are buffers so that no optimiser can reach them, neither by momentum nor by weight decay.
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
        """The tensors of a branch that has learnt nothing."""

    @abstractmethod
    def identity(self, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """The tensors of a branch that passes features of these statistics on as they are."""

    @abstractmethod
    def prepare(self, features: Tensor) -> Tensor:
        """What every branch reads: pooled vectors, made once for all of them."""

    @abstractmethod
    def apply_branch(self, branch: Tensors, prepared: Tensor) -> Tensor:
        """The output of one branch, (N, channels)."""

    @abstractmethod
    def affine(self, branch: Tensors) -> tuple[Tensor, Tensor]:
        """Matrix and offset of a branch as a function of pooled features in evaluation mode, in double precision."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Output of the new branch, and the mean output b̄ of the old ones (None while there are none)."""
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
        """The mean of the old branches; None while there are none."""
        means = {name: stack.mean(dim=0) for name, stack in self.stacks().items() if len(stack)}
        return means or None

    @torch.no_grad()
    def remember(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Take the new branch into the past: ``combine(stack of old ones, new one)`` is the next stack."""
        for name, stack in self.stacks().items():
            setattr(self, f"old_{name}", combine(stack, self.get_parameter(f"new_{name}")).clone())

    @torch.no_grad()
    def reset(self) -> None:
        """Let the new branch start afresh."""
        for name, tensor in self.fresh().items():
            self.get_parameter(f"new_{name}").copy_(tensor)

    @torch.no_grad()
    def assume(self, **old: Tensor) -> None:
        """Make these tensors the only old branch: for a past that was learnt elsewhere."""
        if sorted(old) != sorted(self.names):
            raise WrongValueError(f"a branch has the tensors {', '.join(self.names)}, but {', '.join(old)} were given")
        for name, tensor in old.items():
            setattr(self, f"old_{name}", tensor.to(self.get_parameter(f"new_{name}")).clone().unsqueeze(0))


class ConvBranches(Branches):
    """1×1 convolutions without bias, b = ω f: the paper's branches."""

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
    """Batch normalisations, b = γ ẑ + β: the published program's branches.

    All branches read the same positions and so would keep the same statistics: there is one normalisation ẑ (``norm``)
    and per branch only the affine pair (``scale`` γ, ``shift`` β).
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
        seen = features if self.norm.training else pool(features, self.channels)
        return pool(self.norm(as_map(seen, self.channels)), self.channels)

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
    """Branches of the kind with this name."""
    one_of("branch initialisation", conv_init, get_args(ConvInit))
    one_of("branch", kind, get_args(BranchKind))
    return ConvBranches(channels, conv_init) if kind == "conv" else NormBranches(channels)
