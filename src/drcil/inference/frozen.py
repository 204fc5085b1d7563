"""Frozen copies of nets."""

from __future__ import annotations

import copy
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class _Foldable(Protocol):
    def fold(self) -> nn.Module: ...


def frozen_copy(net: nn.Module) -> nn.Module:
    """A frozen copy in evaluation mode, folded where the net can be folded."""
    frozen = net.fold() if isinstance(net, _Foldable) else copy.deepcopy(net)
    return frozen.eval().requires_grad_(False)
