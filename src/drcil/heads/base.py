"""What a head is: features in, logits out, and a way to grow."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..registry import Registry

_NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Logits(NamedTuple):
    """Scores over all classes seen so far, (N, classes)."""

    fused: Tensor
    """What the head answers."""
    new: Tensor | None = None
    """The new branch alone, where there are branches."""
    old: Tensor | None = None
    """The old branch alone; None at task 1, where there is no past."""
    extras: Mapping[str, Tensor] = _NOTHING
    """Named by-products: raw cosines, an auxiliary head's logits."""


class Head(nn.Module, ABC):
    """Features to logits. It starts without a class; ``grow`` opens each task, the first too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.tasks: list[int] = []
        """Number of classes each task brought."""

    @property
    def classes(self) -> int:
        return sum(self.tasks)

    @abstractmethod
    def grow(self, new_classes: int) -> None:
        """Open a task: add rows for its classes. Old rows are kept bit for bit."""

    @abstractmethod
    def forward(self, features: Tensor) -> Logits:
        """Logits of maps (N, C, H, W) or pooled vectors (N, C)."""

    @abstractmethod
    def fold(self) -> nn.Module:
        """The same function of pooled features in evaluation mode; one ``nn.Linear`` where it is affine."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The constructor's arguments besides ``channels``, as JSON."""

    def describe(self) -> dict[str, Any]:
        """Name, width, options and classes per task, as JSON, from which the same shapes can be built again."""
        name = next((name for name, kind in HEADS.items() if kind is type(self)), None)
        if name is None:
            raise LookupError(f"{type(self).__name__} is not registered in HEADS")
        return {"name": name, "channels": self.channels, "options": self.options(), "tasks": list(self.tasks)}

    def frozen_parameters(self) -> int:
        """How many learnt numbers it keeps outside its parameters, where no optimiser reaches them."""
        return 0


HEADS: Registry[Callable[..., Head]] = Registry("head", "drcil.heads")


def require_classes(new_classes: int) -> None:
    """A task that brings no class cannot be opened."""
    if new_classes < 1:
        raise UserError(f"a task needs at least one new class, but {new_classes} were given")


def pool(features: Tensor) -> Tensor:
    """Global average over the positions of a map; vectors pass through."""
    return features.mean(dim=(2, 3)) if features.ndim == 4 else features


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """The layer with these numbers."""
    classes, channels = weight.shape
    # On the meta device nothing is drawn for numbers that are given.
    layer = nn.Linear(channels, 1, device="meta")
    layer.out_features = classes
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def new_linear(channels: int, classes: int) -> nn.Linear:
    """A classifier layer: weights uniform in ±sqrt(3 / channels) (Kaiming, linear gain), bias zero."""
    bound = math.sqrt(3 / channels)
    return linear_of(torch.empty(classes, channels).uniform_(-bound, bound), torch.zeros(classes))


def grown_linear(old: nn.Linear, channels: int, new_classes: int) -> nn.Linear:
    """A layer with fresh rows behind the old ones, which are copied bit for bit (on the old layer's device)."""
    require_classes(new_classes)
    fresh = new_linear(channels, new_classes).to(old.weight.device, old.weight.dtype)
    with torch.no_grad():
        return linear_of(torch.cat([old.weight, fresh.weight]), torch.cat([old.bias, fresh.bias]))
