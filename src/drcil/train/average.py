"""The mean of a net's weights along its training, with which a stage may end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Keeps an exponential moving average of the weights and running statistics of a net."""

    def __init__(self, net: nn.Module, kept: float) -> None:
        """``kept``: the share of the average that a step leaves; 0: there is none, and nothing is done."""
        self._kept = kept
        self._own = {name: one for name, one in net.state_dict().items() if one.is_floating_point()} if kept else {}
        self._mean = {name: one.detach().clone() for name, one in self._own.items()}

    def add(self) -> None:
        """After a step."""
        if self._own:
            torch._foreach_lerp_(list(self._mean.values()), list(self._own.values()), 1 - self._kept)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within the block the net has its average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def settle(self) -> None:
        """The net becomes its average."""
        self._swap()

    def _swap(self) -> None:
        for name, own in self._own.items():
            before = own.clone()
            own.copy_(self._mean[name])
            self._mean[name].copy_(before)

    def state(self) -> dict[str, Tensor]:
        return dict(self._mean)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, mean in self._mean.items():
            mean.copy_(tensors[name])
