"""A set of named operations, and how a batch takes them: each image its own, those that can together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .colour import look_up
from .pixels import on_device_of

NONE = -1
"""The number of no operation at all."""


@dataclass(frozen=True)
class OperationSet:
    """Operations by name, in three kinds; an operation's number is its place in ``names``."""

    tables: Mapping[str, Callable[[Tensor, Tensor], Tensor]]
    """Pointwise ones: images and values to tables for one look-up."""
    maps: Mapping[str, Callable[[int, int, Tensor], Tensor]]
    """Those that move pixels: height, width and values to coefficients (…, N) for one ``warp``."""
    warp: Callable[[Tensor, Tensor], Tensor]
    """Images and coefficients to moved images."""
    mixes: Mapping[str, Callable[[Tensor, Tensor], Tensor]]
    """Those whose pixels are weighted sums of several: images and values to images."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.tables, *self.maps, *self.mixes)

    def apply(self, images: Tensor, operations: Tensor, values: Tensor) -> Tensor:
        """Apply to each image the operation of its number (-1: none) with its value.

        Images are put in the order of their operations, so that those which share one are a slice; all pointwise
        operations end in one look-up, all that move pixels in one warp.
        """
        height, width = images.shape[2:]
        order = operations.argsort()
        values = values[order]
        grouped = images.index_select(0, on_device_of(order, images))
        starts = torch.bincount(operations + 1, minlength=len(self.names) + 1).cumsum(0).tolist()
        spans = {name: slice(*starts[i : i + 2]) for i, name in enumerate(self.names) if starts[i] < starts[i + 1]}

        tables = [self.tables[name](grouped[span], values[span]) for name, span in spans.items() if name in self.tables]
        if tables:
            pointwise = slice(starts[0], starts[len(self.tables)])
            entries = torch.cat([table.expand(-1, images.shape[1], -1) for table in tables])
            grouped[pointwise] = look_up(grouped[pointwise], entries)
        maps = [self.maps[name](height, width, values[span]) for name, span in spans.items() if name in self.maps]
        if maps:
            moved = slice(starts[len(self.tables)], starts[len(self.tables) + len(self.maps)])
            grouped[moved] = self.warp(grouped[moved], torch.cat(maps, dim=-1))
        for name, span in spans.items():
            if name in self.mixes:
                grouped[span] = self.mixes[name](grouped[span], values[span])
        return grouped.index_select(0, on_device_of(order.argsort(), images))
