"""Frozen copies of nets, for use without training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from ..nets.output import Readout


@runtime_checkable
class _Foldable(Protocol):
    def fold(self) -> nn.Module: ...


def frozen_copy(net: nn.Module) -> nn.Module:
    """A copy in evaluation mode without gradients, folded where the net can be folded."""
    frozen = net.fold() if isinstance(net, _Foldable) else copy.deepcopy(net)
    return frozen.eval().requires_grad_(False)


def frozen_readouts(readouts: Mapping[str, Readout]) -> dict[str, Readout]:
    """Readouts of frozen copies; those that share a net go on to share its copy."""
    copies = {id(readout.net): frozen_copy(readout.net) for readout in readouts.values()}
    return {name: Readout(copies[id(own.net)], copy.deepcopy(own.scores)) for name, own in readouts.items()}
