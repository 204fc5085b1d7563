"""Freezing: the leading parts of a backbone, or all of it, stay as they are in every stage.

A backbone knows by itself what of it is frozen, and its copies do too. The engine obeys, whatever a method asks for.
"""

from __future__ import annotations

from torch import nn

from ..errors import UserError
from .features import Backbone

WHOLE = "backbone"
"""The name that stands for all parts."""


def freeze(backbone: Backbone, upto: str) -> None:
    """Freeze a part by its name, and every part before it; ``backbone``: all of them.

    A name that several parts begin with (``stages``) stands for all of these.
    """
    parts = backbone.parts()
    last = max((place for place, name in enumerate(parts) if f"{name}.".startswith(f"{upto}.")), default=None)
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
    """What no optimiser moves: everything but the parts behind those that are frozen."""
    learning = {
        id(parameter) for name in _split(backbone)[1] for parameter in backbone.get_submodule(name).parameters()
    }
    return [parameter for parameter in backbone.parameters() if id(parameter) not in learning]


def _split(backbone: Backbone) -> tuple[list[str], list[str]]:
    """The names of the frozen parts, and of those that learn."""
    parts = list(backbone.parts())
    if backbone.frozen is None or backbone.frozen == WHOLE:
        return (parts, []) if backbone.frozen else ([], parts)
    kept = parts.index(backbone.frozen) + 1
    return parts[:kept], parts[kept:]
