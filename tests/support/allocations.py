"""How many bytes tensors take, counted where torch makes them: the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts bytes of tensors that operations make within the block; those that were there before do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = self.largest = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._sizes:
                self._watch(storage, 0)
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in self._sizes:
                self._watch(storage, storage.nbytes())
        return result

    def _watch(self, storage: UntypedStorage, size: int) -> None:
        self._sizes[storage._cdata] = size
        self.held += size
        self.peak, self.largest = max(self.peak, self.held), max(self.largest, size)
        weakref.finalize(storage, self._release, storage._cdata)

    def _release(self, key: int) -> None:
        self.held -= self._sizes.pop(key)


def _storages(values: Any) -> list[UntypedStorage]:
    """Those that take memory."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.device.type != "meta"]
    return [tensor.untyped_storage() for tensor in tensors]
