"""Parts: modules that a method keeps between tasks, and that describe how to build them again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..files import checksum
from ..registry import Registry
from ..seeding import seeded_torch


class Part(nn.Module):
    """A module that outlives a task. Saving, resuming and loading a method save and load its parts.

    A kind of part is registered under a name: ``@PARTS.register("name")``.
    """

    def describe(self) -> dict[str, Any]:
        """The arguments of ``build``, as JSON."""
        return {}

    @classmethod
    def build(cls, *arguments: Any, **description: Any) -> Self:
        """A part with tensors of the same names, shapes and types as the one that was described."""
        return cls(*arguments, **description)

    def forget(self, classes: Collection[int]) -> None:
        """Remove everything about these labels. Higher labels move down."""
        raise UserError(f"a part of the kind {type(self).__name__} cannot forget classes")


PARTS: Registry[type[Part]] = Registry("part", "drcil.nets", "drcil.methods")


def describe_part(part: Part) -> dict[str, Any]:
    """What ``build_part`` needs, as JSON: the name of the kind, and its description."""
    return {"part": PARTS.name_of(type(part)), **part.describe()}


def build_part(description: dict[str, Any]) -> Part:
    """A part of this description, in evaluation mode. Its tensors have yet to be loaded."""
    arguments = dict(description)
    kind = PARTS[arguments.pop("part")]
    # Initial weights are drawn only to be overwritten: later draws must not depend on that.
    with seeded_torch("overwritten"):
        return kind.build(**arguments).eval()


def load_part(description: dict[str, Any], tensors: dict[str, Tensor]) -> Part:
    """A part of this description with these tensors, whose names and shapes must match exactly."""
    part = build_part(description)
    if checksum(describe_part(part)) != checksum(description):
        # A missing entry would be replaced by a default, which may be another function of the same tensors.
        raise UserError(f"the description of the part '{description['part']}' is incomplete")
    _check_tensors(part.state_dict(), tensors)
    part.load_state_dict(tensors)
    return part


def _check_tensors(expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            raise UserError(f"'{name}' is {'missing' if name in expected else 'not expected'}")
        tensor, like = tensors[name], expected[name]
        if tensor.shape != like.shape:
            raise UserError(f"'{name}' has shape {tuple(tensor.shape)} instead of {tuple(like.shape)}")
        if tensor.dtype != like.dtype:
            raise UserError(f"'{name}' is of type {tensor.dtype} instead of {like.dtype}")
        # The sum is cheaper to check, but it may overflow.
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise UserError(f"'{name}' has values that are not finite")


@PARTS.register("number")
class Number(Part):
    """A number that a method keeps."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Buffer(torch.tensor(value, dtype=torch.float64))

    def forget(self, classes: Collection[int]) -> None:
        """It belongs to no class."""
