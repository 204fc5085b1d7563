"""What a head is: features in, logits out, and a way to grow."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..arguments import instance, whole
from ..errors import UserError, WrongTypeError, WrongValueError
from ..limits import CHANNELS, CLASSES
from ..registry import Registry


class Logits(NamedTuple):
    """Scores over all classes seen so far, (N, classes)."""

    fused: Tensor
    """What the head answers."""
    new: Tensor | None = None
    """The new branch alone, where there are branches."""
    old: Tensor | None = None
    """The old branch alone; None at task 1, where there is no past."""
    extras: Mapping[str, Tensor] = {}
    """Named by-products: raw cosines, an auxiliary head's logits."""


class Head(nn.Module, ABC):
    """Features to logits. It starts without a class; ``grow`` opens each task, the first too."""

    reads: ClassVar[Literal["last", "pooled"]] = "pooled"
    """What a net hands it: the backbone's last map or tokens, or their average."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = whole("channels", channels, CHANNELS)
        self.tasks: list[int] = []
        """Number of classes that each task brought and that are still there."""

    @property
    def classes(self) -> int:
        return sum(self.tasks)

    @abstractmethod
    def grow(self, new_classes: int) -> None:
        """Open a task: add rows for its classes. Old rows are kept bit for bit."""

    def forget(self, classes: Collection[int]) -> None:
        """Let go of classes, by their columns. The logits of all others stay what they are, and close up."""
        kept = [column for column in range(self.classes) if column not in classes]
        self.keep(kept)
        self.tasks[:] = remaining(self.tasks, kept)

    def keep(self, columns: Sequence[int]) -> None:
        """Keep the rows of these classes, and nothing of the others; here, those of the layer ``classifier``."""
        classifier = getattr(self, "classifier", None)
        if not isinstance(classifier, nn.Linear):
            raise UserError(f"a head of the kind {type(self).__name__} cannot forget classes")
        self.classifier = kept_linear(classifier, columns)

    @abstractmethod
    def forward(self, features: Tensor) -> Logits:
        """Logits of maps (N, C, H, W), tokens (N, T, C) or vectors (N, C), whatever it reads in a net."""

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

    def class_parameters(self) -> list[nn.Parameter]:
        """What is trained where classes are only balanced: the layer ``classifier``, or all of a head without one."""
        return list(getattr(self, "classifier", self).parameters())

    def frozen_parameters(self) -> int:
        """How many learnt numbers it keeps outside its parameters, where no optimiser reaches them."""
        return 0


HEADS: Registry[Callable[..., Head]] = Registry("head", "drcil.heads")


def require_classes(new_classes: int) -> None:
    """A task that brings no class cannot be opened."""
    whole("the number of new classes", new_classes, CLASSES)


class Growing(Protocol):
    """What opens tasks and lets go of classes: a head, or a net with one."""

    def grow(self, new_classes: int) -> None: ...

    def forget(self, classes: Collection[int]) -> None: ...


def grow_all(growing: Growing, tasks: Sequence[int]) -> None:
    """Open tasks of these sizes one after the other; of a size of 0 all classes were forgotten."""
    opened = [max(1, size) for size in tasks]
    for size in opened:
        growing.grow(size)
    gone = [sum(opened[:place]) for place, size in enumerate(tasks) if size == 0]
    if gone:
        growing.forget(gone)


def remaining(tasks: Sequence[int], kept: Sequence[int]) -> list[int]:
    """How many classes of each task are among those kept."""
    ends = [sum(tasks[: place + 1]) for place in range(len(tasks))]
    return [sum(end - size <= column < end for column in kept) for end, size in zip(ends, tasks, strict=True)]


def as_map(features: Tensor, channels: int) -> Tensor:
    """Maps as they are; tokens (N, T, C) as maps (N, C, T, 1), vectors (N, C) as maps (N, C, 1, 1)."""
    if not instance("features", features, Tensor).is_floating_point():
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
    """Average over the positions of maps or over tokens, (N, channels); vectors stay what they are."""
    maps = as_map(features, channels)
    return features if features.ndim == 2 else maps.mean(dim=(2, 3))


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


def kept_linear(layer: nn.Linear, rows: Sequence[int]) -> nn.Linear:
    """The layer with these rows of it, bit for bit."""
    chosen = list(rows)
    return linear_of(layer.weight.detach()[chosen], layer.bias.detach()[chosen])
