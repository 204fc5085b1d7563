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


class Preprocessing(NamedTuple):
    """How the images were made that the published weights of a backbone were learnt from."""

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation per channel (red, green, blue), of values in [0, 1]."""

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of so many channels: grey images take the averages; None: nothing is known."""
        if channels == len(self.mean):
            return self.mean, self.std
        if channels == 1:
            return (sum(self.mean) / len(self.mean),), (sum(self.std) / len(self.std),)
        return None


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

    def tokens(self, images: Tensor) -> Tensor:
        """What it sees in each place of an image, (N, T, channels): its tokens, or the positions of its last map."""
        last: Tensor = self(images).last
        return last.flatten(2).transpose(1, 2) if last.ndim == 4 else last

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
        return parts_of(self)

    def normalised_convolutions(self) -> list[tuple[str, str]]:
        """Pairs (convolution, batch norm right behind it) by module name: what folding joins."""
        return []


def parts_of(module: nn.Module) -> tuple[str, ...]:
    """The modules with parameters within a module, as they were added; of lists and sequences their members."""
    names: list[str] = []
    for name, child in module.named_children():
        several = isinstance(child, nn.ModuleList | nn.Sequential)
        inner = [(f"{name}.{key}", one) for key, one in child.named_children()] if several else [(name, child)]
        names += [path for path, one in inner if any(True for _ in one.parameters())]
    return tuple(names)


class BackboneTable(Registry[Callable[..., Backbone]]):
    """Backbones by name. ``timm:NAME``, which nobody registers, is found by who looks up names behind ``timm:``."""

    def __init__(self, kind: str, *home: str) -> None:
        super().__init__(kind, *home)
        self._prefixes: dict[str, Callable[[str], Callable[..., Backbone]]] = {}

    def register_prefix(self, prefix: str, look_up: Callable[[str], Callable[..., Backbone]]) -> None:
        """Let a function find the factories of names that begin so, by the rest of the name."""
        self._prefixes[prefix] = look_up

    def __getitem__(self, name: str) -> Callable[..., Backbone]:
        self._fill()
        for prefix, look_up in self._prefixes.items():
            if name.startswith(prefix):
                return look_up(name.removeprefix(prefix))
        return super().__getitem__(name)


BACKBONES = BackboneTable("backbone", "drcil.nets")
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
    """The family of a backbone by its name; none is built, but for outlines without memory."""
    return cast(Family, getattr(BACKBONES[backbone], "family", "convolutional"))


def preprocessing_of(backbone: str) -> Preprocessing | None:
    """How a backbone wants its images, by its name; None: as the dataset has them."""
    return cast("Preprocessing | None", getattr(BACKBONES[backbone], "preprocessing", None))
