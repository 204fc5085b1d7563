"""Nets by name: what is built from the tables of backbones and heads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..heads.base import HEADS, Head, grow_all
from .features import BACKBONES, Backbone
from .net import Net

__all__ = [
    "BACKBONES",
    "HEADS",
    "backbone_for",
    "build_backbone",
    "build_described_head",
    "build_head",
    "build_net",
    "require_width",
]


def backbone_for(name: str, channels_in: int, image_size: int, **options: Any) -> Backbone:
    """A fresh backbone for images of so many channels and pixels a side, of which not every backbone must know."""
    sized = {"image_size": image_size} if _is_sized(name) else {}
    return build_backbone(name, channels_in, **sized, **options)


def _is_sized(name: str) -> bool:
    return "image_size" in inspect.signature(BACKBONES[name]).parameters


def build_backbone(name: str, channels_in: int, **options: Any) -> Backbone:
    """A fresh backbone for images of so many channels, in the variant that the options ask for."""
    factory = BACKBONES[name]
    if _is_sized(name) and "image_size" not in options:
        raise UserError(f"backbone '{name}' is made for images of one size, but no 'image_size' is given")
    try:
        inspect.signature(factory).bind(channels_in, **options)
    except TypeError:
        asked = ", ".join(f"{option}={value}" for option, value in options.items() if option != "image_size")
        raise UserError(f"backbone '{name}' has no variant with {asked}, which the method needs") from None
    return factory(channels_in, **options)


def build_head(name: str, channels: int, **options: Any) -> Head:
    """A fresh head, still without a class."""
    return HEADS[name](channels, **options)


def build_described_head(description: Mapping[str, Any]) -> Head:
    """A head of the shape that ``Head.describe`` told, grown task by task."""
    head = build_head(description["name"], description["channels"], **description["options"])
    grow_all(head, description["tasks"])
    return head


def build_net(description: Mapping[str, Any]) -> Net:
    """A net of the shape that ``Net.describe`` told, ready for ``load_state_dict``."""
    backbone = build_backbone(**description["backbone"])
    require_width(backbone, description["head"])
    return Net(backbone, build_described_head(description["head"]))


def require_width(backbone: Backbone, head: Mapping[str, Any]) -> None:
    """A head must be described for the features that the backbone gives."""
    if head["channels"] != backbone.channels:
        raise UserError(f"the head is for {head['channels']} channels, but the backbone gives {backbone.channels}")
