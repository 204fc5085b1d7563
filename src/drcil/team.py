"""Several processes that work as one: each knows its place among them, and they exchange tensors and plain values.

Every process does the same, in the same order, so that all of them meet in every exchange. What only one may do,
such as writing, the first does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that work on one thing. A process by itself is a team of one, and exchanges nothing."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Team:
        """The processes of torch's default group; alone, where there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return ALONE

    @property
    def leads(self) -> bool:
        """Whether this is the one process that prints, logs and writes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def share(self, count: int) -> slice:
        """Which of so many things in a row are this process's; none has more than one above another."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors; that of one process is its own."""
        if not self.alone:
            tensor = tensor.contiguous()
            dist.all_reduce(tensor)
        return tensor

    def gathered(self, tensor: Tensor) -> Tensor:
        """The processes' tensors, all of one shape, in a new first dimension by rank."""
        if self.alone:
            return tensor[None]
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor.contiguous())
        return torch.stack(found)

    def joined(self, columns: Sequence[Tensor] | None) -> list[Tensor]:
        """Rows that were computed apart, one rank's behind another's, in every process; None: no rows of one's own.

        Each column is a tensor on the CPU, with as many rows as the others.
        """
        if self.alone:
            assert columns is not None
            return list(columns)
        told = self.everyone(
            None if columns is None else [(tuple(own.shape), own.dtype, _layout(own)) for own in columns]
        )
        kinds = next(one for one in told if one is not None)
        rows = [0 if one is None else one[0][0][0] for one in told]
        found = [
            torch.empty((sum(rows), *shape[1:]), dtype=dtype, memory_format=layout) for shape, dtype, layout in kinds
        ]
        for column, whole in enumerate(found):
            for rank, part in enumerate(torch.split(whole, rows)):
                if rank == self.rank and columns is not None:
                    part.copy_(columns[column])
                if part.numel():
                    # As bytes, which every backend can send.
                    dist.broadcast(_in_memory_order(part).view(torch.uint8), rank)
        return found

    def everyone(self, value: T) -> list[T]:
        """The processes' values, by rank."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def leaders(self, value: T) -> T:
        """The value that the first process has; those of the others do not count."""
        if self.alone:
            return value
        box = [value if self.leads else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]

    def wait(self) -> None:
        """Until all have come as far as here."""
        self.everyone(None)


def _layout(tensor: Tensor) -> torch.memory_format:
    maps = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if maps else torch.contiguous_format


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Its numbers in a row, not copied."""
    return (tensor.permute(0, 2, 3, 1) if _layout(tensor) is torch.channels_last else tensor).view(-1)


ALONE = Team()
