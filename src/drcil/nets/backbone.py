"""Backbones: images to features; registry, freezing, folding of batch normalisation.

A backbone stores which of its parts are frozen, and copies keep this. The engine never trains frozen parts.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..heads.head import HEADS, Head, grow_all
from ..registry import Registry


class Features(NamedTuple):
    """The features of a batch of images."""

    stages: tuple[Tensor, ...]
    """The map at the end of each stage, (N, C_s, H_s, W_s): what POD-spatial compares. Empty where there are none."""
    last: Tensor
    """The last map, (N, channels, H, W), or the last tokens, (N, T, channels)."""
    pooled: Tensor
    """``last`` averaged over positions or tokens, (N, channels): what herding, nearest means and most heads read."""


class Preprocessing(NamedTuple):
    """The image preprocessing with which the published weights of a backbone were trained."""

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation per channel (red, green, blue), of values in [0, 1]."""

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation for this number of channels: grey images take the averages; None: unknown."""
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
        """Features by position, (N, T, channels): the tokens, or the positions of the last map."""
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
        inner = [(f"{name}.{key}", part) for key, part in child.named_children()] if several else [(name, child)]
        names += [path for path, part in inner if any(True for _ in part.parameters())]
    return tuple(names)


class BackboneTable(Registry[Callable[..., Backbone]]):
    """Backbones by name. ``timm:NAME`` is not registered, but resolved by the finder for the prefix ``timm:``."""

    def __init__(self, kind: str, *home: str) -> None:
        super().__init__(kind, *home)
        self._prefixes: dict[str, Callable[[str], Callable[..., Backbone]]] = {}

    def register_prefix(self, prefix: str, look_up: Callable[[str], Callable[..., Backbone]]) -> None:
        """Register a function that finds factories of names with this prefix, by the rest of the name."""
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


__all__ = [
    "BACKBONES",
    "HEADS",
    "backbone_for",
    "build_backbone",
    "build_described_head",
    "build_head",
    "require_width",
]


def backbone_for(name: str, channels_in: int, image_size: int, **options: Any) -> Backbone:
    """A fresh backbone for images of these channels and this size, which is passed only if the backbone takes it."""
    size_option = {"image_size": image_size} if _is_sized(name) else {}
    return build_backbone(name, channels_in, **size_option, **options)


def _is_sized(name: str) -> bool:
    return "image_size" in inspect.signature(BACKBONES[name]).parameters


def build_backbone(name: str, channels_in: int, **options: Any) -> Backbone:
    """A fresh backbone for images with this number of channels, in the variant set by the options."""
    factory = BACKBONES[name]
    if _is_sized(name) and "image_size" not in options:
        raise UserError(f"backbone '{name}' is made for images of one size, but no 'image_size' is given")
    try:
        inspect.signature(factory).bind(channels_in, **options)
    except TypeError:
        requested = ", ".join(f"{option}={value}" for option, value in options.items() if option != "image_size")
        raise UserError(f"backbone '{name}' has no variant with {requested}, which the method needs") from None
    return factory(channels_in, **options)


def build_head(name: str, channels: int, **options: Any) -> Head:
    """A fresh head, still without a class."""
    return HEADS[name](channels, **options)


def build_described_head(description: Mapping[str, Any]) -> Head:
    """A head from the output of ``Head.describe``, grown task by task."""
    head = build_head(description["name"], description["channels"], **description["options"])
    grow_all(head, description["tasks"])
    return head


def require_width(backbone: Backbone, head: Mapping[str, Any]) -> None:
    """A head must be described for the features that the backbone gives."""
    if head["channels"] != backbone.channels:
        raise UserError(f"the head is for {head['channels']} channels, but the backbone gives {backbone.channels}")


WHOLE = "backbone"
"""The name for all parts."""


def freeze(backbone: Backbone, upto: str) -> None:
    """Freeze a part by its name, and every part before it; ``backbone``: all of them.

    A common prefix of several parts (``stages``) means all of them.
    """
    parts = backbone.parts()
    last = max((index for index, name in enumerate(parts) if f"{name}.".startswith(f"{upto}.")), default=None)
    if upto != WHOLE and last is None:
        offered = ", ".join((*parts, WHOLE))
        raise UserError(f"the backbone has no part '{upto}' that could be frozen; it has: {offered}")
    backbone.frozen = WHOLE if last is None or last == len(parts) - 1 else parts[last]


def frozen_backbones(net: nn.Module) -> list[Backbone]:
    """The backbones within a net of which something is frozen."""
    return [module for module in net.modules() if isinstance(module, Backbone) and module.frozen is not None]


def frozen_modules(backbone: Backbone) -> list[nn.Module]:
    """What stays in evaluation mode."""
    if backbone.frozen == WHOLE:
        return [backbone]
    return [backbone.get_submodule(name) for name in _split(backbone)[0]]


def frozen_parameters(backbone: Backbone) -> list[nn.Parameter]:
    """The modules that are not trained: everything except the parts after the frozen ones."""
    learning = {
        id(parameter) for name in _split(backbone)[1] for parameter in backbone.get_submodule(name).parameters()
    }
    return [parameter for parameter in backbone.parameters() if id(parameter) not in learning]


def _split(backbone: Backbone) -> tuple[list[str], list[str]]:
    """The names of the frozen parts, and of those that learn."""
    parts = list(backbone.parts())
    if backbone.frozen is None or backbone.frozen == WHOLE:
        return (parts, []) if backbone.frozen else ([], parts)
    frozen_count = parts.index(backbone.frozen) + 1
    return parts[:frozen_count], parts[frozen_count:]


AnyBackbone = TypeVar("AnyBackbone", bound=Backbone)


@torch.no_grad()
def fold_convolutions(backbone: AnyBackbone) -> AnyBackbone:
    """A copy in evaluation mode, without batch normalisations, that gives the same features; not to be trained."""
    folded = copy.deepcopy(backbone).eval()
    for conv_name, norm_name in folded.normalised_convolutions():
        conv, norm = folded.get_submodule(conv_name), folded.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)
        _fold_into(conv, norm)
        parent, _, leaf = norm_name.rpartition(".")
        setattr(folded.get_submodule(parent), leaf, nn.Identity())
    return folded.requires_grad_(False)


def _fold_into(conv: nn.Conv2d, norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> None:
    """conv := γ (conv − μ) / sqrt(σ² + ε) + β, computed in double precision so that only the result is rounded."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = _double(norm.weight) / torch.sqrt(_double(variance) + norm.eps)
    bias = torch.zeros_like(scale) if conv.bias is None else _double(conv.bias)
    shift = _double(norm.bias) + scale * (bias - _double(mean))
    like = conv.weight
    conv.weight = nn.Parameter((_double(like) * scale[:, None, None, None]).to(like.device, like.dtype))
    conv.bias = nn.Parameter(shift.to(like.device, like.dtype))


def _double(tensor: Tensor) -> Tensor:
    # On the CPU, because not every device has double precision.
    return tensor.detach().to("cpu", torch.float64)
