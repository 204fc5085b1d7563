"""Rank, size and collectives of torch's default process group, as plain functions.

A process without a group has rank 0 of 1, and its collectives return what they are given. All processes of a run call
the same collectives in the same order. Rank 0, the main process, is the only one that prints and writes files.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def init_group(backend: str, **options: Any) -> None:
    """``torch.distributed.init_process_group``; ``destroy_group`` then ends all threads of the group."""
    # If this module is imported later, its default arguments are the group. They would keep the group and its threads
    # until the interpreter exits, where such a thread may abort the process.
    import torch.distributed.nn.functional  # noqa: F401

    dist.init_process_group(backend, **options)


def destroy_group() -> None:
    # DistributedDataParallel holds the group and is in reference cycles.
    gc.collect()
    dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if _has_group() else 0


def size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _has_group() else 1


def is_main() -> bool:
    return rank() == 0


def shard(count: int) -> slice:
    """This process's part of ``count`` items in a row; parts differ by one item at most."""
    return shard_of(count, rank(), size())


def shard_of(count: int, rank: int, size: int) -> slice:
    """The part of process ``rank``."""
    return slice(count * rank // size, count * (rank + 1) // size)


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum of the processes' tensors; the argument may be overwritten."""
    if size() > 1:
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
    return tensor


def all_gather(tensor: Tensor) -> Tensor:
    """The processes' tensors, all of the same shape, stacked by rank."""
    if size() == 1:
        return tensor[None]
    tensors = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(tensors, tensor.contiguous())
    return torch.stack(tensors)


def all_gather_rows(columns: Sequence[Tensor] | None) -> list[Tensor]:
    """The rows of all processes, in order of rank, for each column; None: this process has no rows.

    Columns are tensors on the CPU with equally many rows.
    """
    if size() == 1:
        assert columns is not None
        return list(columns)
    layouts = all_gather_object(
        None if columns is None else [(tuple(column.shape), column.dtype, _layout(column)) for column in columns]
    )
    rows = [0 if layout is None else layout[0][0][0] for layout in layouts]
    gathered = [
        torch.empty((sum(rows), *shape[1:]), dtype=dtype, memory_format=memory_format)
        for shape, dtype, memory_format in next(layout for layout in layouts if layout is not None)
    ]
    for number, column in enumerate(gathered):
        for sender, part in enumerate(torch.split(column, rows)):
            if sender == rank() and columns is not None:
                part.copy_(columns[number])
            if part.numel():
                # As bytes, which every backend can send.
                dist.broadcast(_in_memory_order(part).view(torch.uint8), sender)
    return gathered


def all_gather_object(value: T) -> list[T]:
    """The processes' values, by rank."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: T) -> T:
    """The main process's value; those of the others are ignored."""
    if size() == 1:
        return value
    values = [value if is_main() else None]
    dist.broadcast_object_list(values, src=0)
    return values[0]  # type: ignore[return-value]


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the main process."""
    if size() == 1:
        return
    for tensor in tensors:
        contiguous = tensor.contiguous()
        dist.broadcast(contiguous, src=0)
        if contiguous is not tensor:
            tensor.copy_(contiguous)


def barrier() -> None:
    """Wait until all processes have reached this call."""
    all_gather_object(None)


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _layout(tensor: Tensor) -> torch.memory_format:
    is_channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_channels_last else torch.contiguous_format


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A flat view of the tensor, in the order of its memory."""
    return (tensor.permute(0, 2, 3, 1) if _layout(tensor) is torch.channels_last else tensor).view(-1)
