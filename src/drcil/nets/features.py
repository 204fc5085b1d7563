"""What a backbone is: images in, features out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, cast

from torch import Tensor, nn

from ..registry import Registry


class Features(NamedTuple):
    """What a backbone sees in a batch of images."""

    stages: tuple[Tensor, ...]
    """The map at the end of each stage, (N, C_s, H_s, W_s): what POD-spatial compares. Empty where there are none."""
    last: Tensor
    """The last map, (N, channels, H, W), or the last tokens, (N, T, channels)."""
    pooled: Tensor
    """``last`` averaged over positions or tokens, (N, channels): what herding, nearest means and most heads read."""


class Backbone(nn.Module, ABC):
    """Images to features: stage maps if it has any, the last map or tokens, and the average of these.

    Folding a net relies on ``pooled`` being the average of ``last``: a backbone that answers with one class token gives
    that token alone as ``last``.
    """

    channels: int
    """Width of the last map, or of a token."""
    stage_maps: bool = False
    """Whether ``Features.stages`` has maps, so that losses on them are possible."""
    frozen: str | None = None
    """The part that is frozen with all parts before it, or ``"backbone"``; see ``nets.freezing``."""

    @abstractmethod
    def forward(self, images: Tensor) -> Features: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and options, as JSON, from which the same architecture can be built again."""

    def as_published(self) -> nn.Module:
        """The module whose tensors have the names that files of weights use."""
        return self

    def adapted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file, by name, as this backbone can take them."""
        return tensors

    def parts(self) -> tuple[str, ...]:
        """The parts that can be frozen, by module name, in order from the input.

        Here: the modules with parameters as they were added, those within a list or sequence each by itself. Parameters
        of the backbone itself, such as positions, are frozen with any part.
        """
        names: list[str] = []
        for name, child in self.named_children():
            several = isinstance(child, nn.ModuleList | nn.Sequential)
            inner = [(f"{name}.{key}", one) for key, one in child.named_children()] if several else [(name, child)]
            names += [path for path, module in inner if any(True for _ in module.parameters())]
        return tuple(names)

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        """Pairs (convolution, batch norm right behind it) by module name: what folding joins."""
        return []


BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone", "drcil.nets")
"""Factories by name; each takes the number of image channels, and as keywords the variants it offers.

One that has a keyword ``image_size`` makes backbones for images of one size, which say it in their description.
"""

Family = Literal["convolutional", "transformer"]
"""What recipes distinguish: transformers take another optimiser and smaller rates."""
Factory = TypeVar("Factory", bound=Callable[..., Backbone])


def of_family(family: Family) -> Callable[[Factory], Factory]:
    """Say which family a factory's backbones are of; without it they are convolutional."""

    def mark(factory: Factory) -> Factory:
        factory.family = family  # type: ignore[attr-defined]
        return factory

    return mark


def family_of(backbone: str) -> Family:
    """The family of a backbone by its name; none is built."""
    return cast(Family, getattr(BACKBONES[backbone], "family", "convolutional"))
