"""A set of named operations, and how a batch takes them: each image its own, those that can together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .pixels import in_pieces
from .tones import Shown, Toned

NONE = -1
"""The number of no operation at all."""


@dataclass(frozen=True)
class OperationSet:
    """Operations by name, in three kinds; an operation's number is its place in ``names``."""

    tables: Mapping[str, Callable[[Shown, Tensor], Tensor]]
    """Pointwise ones: images as they are shown, and values, to tables."""
    maps: Mapping[str, Callable[[int, int, Tensor], Tensor]]
    """Those that move pixels: height, width and values to coefficients (…, N) for one ``warp``."""
    warp: Callable[[Tensor, Tensor], Tensor]
    """Images and coefficients to moved images."""
    mixes: Mapping[str, Callable[[Tensor, Tensor], Tensor]]
    """Those whose pixels are weighted sums of several: images and values to images."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.tables, *self.maps, *self.mixes)

    def apply(self, images: Toned, operations: Tensor, values: Tensor) -> None:
        """Apply to each image the operation of its number (-1: none) with its value.

        Those that share an operation go together. All pointwise ones become tables, to be looked up when pixels are
        asked for; all that move pixels share one warp.
        """
        height, width = images.shape[2:]
        order = operations.argsort()
        starts = torch.bincount(operations + 1, minlength=len(self.names) + 1).cumsum(0).tolist()
        spans = {
            name: order[starts[i] : starts[i + 1]] for i, name in enumerate(self.names) if starts[i] < starts[i + 1]
        }

        tables = [
            self.tables[name](images.shown(chosen), values[chosen]).expand(-1, images.shape[1], -1)
            for name, chosen in spans.items()
            if name in self.tables
        ]
        if tables:
            images.tone(order[starts[0] : starts[len(self.tables)]], torch.cat(tables))
        maps = [self.maps[name](height, width, values[chosen]) for name, chosen in spans.items() if name in self.maps]
        if maps:
            moved = order[starts[len(self.tables)] : starts[len(self.tables) + len(self.maps)]]
            images.put(moved, in_pieces(self.warp, images.pixels(moved), torch.cat(maps, dim=-1)))
        for name, chosen in spans.items():
            if name in self.mixes:
                images.put(chosen, in_pieces(self.mixes[name], images.pixels(chosen), values[chosen]))
