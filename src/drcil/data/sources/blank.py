"""Images that are not there: of the right number and shape, with pixels that mean nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...keys import generator
from .imageset import Draw, Int64, Source, indices

_PICTURES = 64


class BlankSource(Source):
    """As many images as one likes, which take the memory of a few: rows share their pixels."""

    def __init__(self, length: int, channels: int, size: int, in_memory: bool = True) -> None:
        self._length, self.channels, self.size, self.in_memory = length, channels, size, in_memory
        self._pixels: Tensor | None = None

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Int64, draw: Draw | None = None) -> Tensor:
        if self._pixels is None:
            shape = (_PICTURES, self.channels, self.size, self.size)
            self._pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator("blank"))
        return self._pixels[indices(rows % _PICTURES, self._pixels.device)]

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}
