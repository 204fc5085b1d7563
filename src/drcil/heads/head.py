"""Base class of heads: features to logits; growing and removing classes."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..errors import Bounds, UserError, WrongTypeError, WrongValueError, check_int, check_type
from ..registry import Registry

SIZES = Bounds(1, 2**20)
"""Numbers of channels and of classes."""


class Logits(NamedTuple):
    """Scores of all classes so far, (N, classes)."""

    fused: Tensor
    """The scores of the head."""
    new: Tensor | None = None
    """Scores of the new branch only, for heads with branches."""
    old: Tensor | None = None
    """Scores of the old branch only; None at task 1, where there is no old branch."""
    extras: Mapping[str, Tensor] = {}
    """Named by-products, such as cosines or the logits of an auxiliary classifier."""


class Head(nn.Module, ABC):
    """Features to logits. It starts without classes; ``grow`` opens each task, including the first."""

    reads: ClassVar[Literal["last", "pooled"]] = "pooled"
    """What a net passes to it: the last map or tokens of the backbone, or their average."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = check_int("channels", channels, SIZES)
        self.tasks: list[int] = []
        """Number of classes of each task, without those that were forgotten."""

    @property
    def classes(self) -> int:
        return sum(self.tasks)

    @abstractmethod
    def grow(self, new_classes: int) -> None:
        """Open a task: add rows for its classes. Old rows stay the same bit for bit."""

    def forget(self, classes: Collection[int]) -> None:
        """Remove classes by column. The logits of all others stay the same; later columns move down."""
        columns = [column for column in range(self.classes) if column not in classes]
        self.keep(columns)
        self.tasks[:] = remaining(self.tasks, columns)

    def keep(self, columns: Sequence[int]) -> None:
        """Keep the rows of these classes and remove all others; by default those of the layer ``classifier``."""
        classifier = getattr(self, "classifier", None)
        if not isinstance(classifier, nn.Linear):
            raise UserError(f"a head of the kind {type(self).__name__} cannot forget classes")
        self.classifier = select_rows(classifier, columns)

    @abstractmethod
    def forward(self, features: Tensor) -> Logits:
        """Logits of maps (N, C, H, W), tokens (N, T, C) or vectors (N, C)."""

    @abstractmethod
    def fold(self) -> nn.Module:
        """The same function of pooled features in evaluation mode; one ``nn.Linear`` where it is affine."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor except ``channels``, as JSON."""

    def describe(self) -> dict[str, Any]:
        """Name, width, options and classes per task, as JSON: the argument of ``build_described_head``."""
        name = HEADS.name_of(type(self))
        return {"name": name, "channels": self.channels, "options": self.options(), "tasks": list(self.tasks)}

    def class_parameters(self) -> list[nn.Parameter]:
        """What balanced fine-tuning trains: the layer ``classifier``, or the whole head if it has none."""
        return list(getattr(self, "classifier", self).parameters())

    def frozen_parameters(self) -> int:
        """Number of learnt values outside the parameters, where no optimiser reaches them."""
        return 0


HEADS: Registry[Callable[..., Head]] = Registry("head", "drcil.heads")


def require_classes(new_classes: int) -> None:
    """Refuse a task without classes."""
    check_int("the number of new classes", new_classes, SIZES)


class Growing(Protocol):
    """A head, or a net with a head."""

    def grow(self, new_classes: int) -> None: ...

    def forget(self, classes: Collection[int]) -> None: ...


def grow_all(growing: Growing, tasks: Sequence[int]) -> None:
    """Open tasks of these sizes. Size 0: all classes of the task were forgotten."""
    opened = [max(1, size) for size in tasks]
    for size in opened:
        growing.grow(size)
    forgotten = [sum(opened[:index]) for index, size in enumerate(tasks) if size == 0]
    if forgotten:
        growing.forget(forgotten)


def remaining(tasks: Sequence[int], columns: Sequence[int]) -> list[int]:
    """How many of these columns belong to each task."""
    ends = itertools.accumulate(tasks)
    return [sum(end - size <= column < end for column in columns) for end, size in zip(ends, tasks, strict=True)]


def as_map(features: Tensor, channels: int) -> Tensor:
    """Maps unchanged, tokens (N, T, C) as maps (N, C, T, 1), vectors (N, C) as maps (N, C, 1, 1)."""
    if not check_type("features", features, Tensor).is_floating_point():
        raise WrongTypeError(f"features must be floating-point numbers, not {features.dtype}")
    if features.ndim == 2:
        features = features[:, :, None, None]
    elif features.ndim == 3:
        features = features.transpose(1, 2)[..., None]
    elif features.ndim != 4:
        raise WrongValueError(
            f"a head reads maps (N, C, H, W), tokens (N, T, C) or vectors (N, C), not features of shape "
            f"{tuple(features.shape)}"
        )
    if features.shape[1] != channels:
        raise WrongValueError(f"the features have {features.shape[1]} channels, but the head is for {channels}")
    return features


def pool(features: Tensor, channels: int) -> Tensor:
    """Average over the positions of maps or over tokens, (N, channels); vectors unchanged."""
    maps = as_map(features, channels)
    return features if features.ndim == 2 else maps.mean(dim=(2, 3))


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with this weight and bias."""
    classes, channels = weight.shape
    # On the meta device no random weights are drawn.
    layer = nn.Linear(channels, 1, device="meta")
    layer.out_features = classes
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def new_linear(channels: int, classes: int) -> nn.Linear:
    """A classifier layer: weights uniform in ±sqrt(3 / channels) (Kaiming, linear gain), bias zero."""
    bound = math.sqrt(3 / channels)
    return linear_of(torch.empty(classes, channels).uniform_(-bound, bound), torch.zeros(classes))


def grown_linear(old: nn.Linear, channels: int, new_classes: int) -> nn.Linear:
    """The layer with new rows appended, on its device; existing rows stay the same bit for bit."""
    require_classes(new_classes)
    fresh = new_linear(channels, new_classes).to(old.weight.device, old.weight.dtype)
    with torch.no_grad():
        return linear_of(torch.cat([old.weight, fresh.weight]), torch.cat([old.bias, fresh.bias]))


def select_rows(layer: nn.Linear, rows: Sequence[int]) -> nn.Linear:
    """The layer with these rows only, bit for bit."""
    indices = list(rows)
    return linear_of(layer.weight.detach()[indices], layer.bias.detach()[indices])
