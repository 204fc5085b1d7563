"""Image sets: labelled references to the images of a source, which may be in memory or on disk.

A *source* holds all images of one split of a dataset, addressed by row; it never changes. An *image set* is a
list of rows of a source with a label each. Subsets and joins copy numbers, never pixels.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...keys import derive

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Draw(NamedTuple):
    """Asks for training views. Each is drawn from the key of an epoch and the position there at which it is taken.

    So an image that an epoch takes several times is seen through several crops.
    """

    key: int
    positions: Int64
    """One per image that is read."""
    wanted: Mask | None = None
    """Of which images a training view is wanted; the others show their test view. None: of all."""

    def subset(self, chosen: Int64) -> Draw:
        return Draw(self.key, self.positions[chosen], None if self.wanted is None else self.wanted[chosen])

    def view_keys(self) -> list[int | None]:
        """One key per image; None for a test view."""
        wanted = np.ones(len(self.positions), dtype=np.bool_) if self.wanted is None else self.wanted
        places = zip(self.positions.tolist(), wanted.tolist(), strict=True)
        return [derive(self.key, position) if is_wanted else None for position, is_wanted in places]


class Source(ABC):
    """Images by row. ``in_memory`` says whether reading is a gather (cheap) or decoding (worth worker processes)."""

    in_memory: bool = False
    channels: int = 3
    size: int
    """Height and width, in pixels, of what ``read`` returns."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Int64, draw: Draw | None = None) -> Tensor:
        """The images as uint8 (N, C, size, size).

        A draw asks for training views where the source has them (random crops of the original files); ``None`` for
        test views.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How to find these images again, as JSON; ``{"kind": "embedded"}`` if nothing but a copy would do."""

    def name(self, row: int) -> str:
        """What to call an image in an error."""
        return f"image {row} of {self.describe().get('name', 'those given')}"

    def digest(self, row: int) -> bytes:
        """A hash of what an image is made from: its pixels, or the file that has them."""
        return hashlib.sha256(self.read(np.array([row], dtype=np.int64)).cpu().numpy().tobytes()).digest()

    def stored_bytes(self) -> int | None:
        """About how many bytes an image has on disk, where its digest is that of these; None: it is not."""
        return None

    @property
    def embedded(self) -> bool:
        """Whether nothing but a copy of them would do."""
        return bool(self.describe()["kind"] == "embedded")

    def on(self, device: torch.device) -> Source:
        """These images in a device's memory, if they are in memory at all."""
        return self


class ArraySource(Source):
    """Images in memory, as one uint8 tensor (N, C, H, W). There is one view: the images as they are."""

    in_memory = True

    def __init__(self, pixels: Tensor, description: dict[str, Any] | None = None) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[2] != pixels.shape[3]:
            raise ValueError(f"pixels must be uint8 (N, C, S, S), not {pixels.dtype} {tuple(pixels.shape)}")
        self.pixels = pixels
        self.channels = pixels.shape[1]
        self.size = pixels.shape[2]
        self._description = description or {"kind": "embedded"}
        self._copies: dict[torch.device, ArraySource] = {}

    def __len__(self) -> int:
        return len(self.pixels)

    def on(self, device: torch.device) -> ArraySource:
        """These images in a device's memory; moved there once."""
        if device not in self._copies:
            self._copies[device] = ArraySource(self.pixels.to(device), self._description)
        return self._copies[device]

    def read(self, rows: Int64, draw: Draw | None = None) -> Tensor:
        return self.pixels[indices(rows, self.pixels.device)]

    def describe(self) -> dict[str, Any]:
        return self._description


class ChainSource(Source):
    """Several sources one after the other: row r of part p is row ``offset(p) + r``."""

    def __init__(self, parts: Sequence[Source]) -> None:
        shapes = {(part.channels, part.size) for part in parts}
        if len(shapes) != 1:
            raise ValueError(f"sources of different image shapes cannot be chained: {sorted(shapes)}")
        self.parts = tuple(parts)
        self.in_memory = all(part.in_memory for part in parts)
        self.channels, self.size = shapes.pop()
        self._starts = np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def offset(self, part: Source) -> int:
        return int(self._starts[next(i for i, own in enumerate(self.parts) if same(own, part))])

    def locate(self, rows: Int64) -> tuple[Int64, Int64]:
        """Which part each row is in, and its row there."""
        part = np.searchsorted(self._starts, rows, side="right") - 1
        return part, rows - self._starts[part]

    def read(self, rows: Int64, draw: Draw | None = None) -> Tensor:
        part, local = self.locate(rows)
        images: Tensor | None = None
        for index in np.unique(part):
            here = np.flatnonzero(part == index)
            read = self.parts[index].read(local[here], draw and draw.subset(here))
            if images is None:
                images = read.new_empty((len(rows), *read.shape[1:]))
            images[indices(here, images.device)] = read
        if images is None:
            return torch.empty((0, self.channels, self.size, self.size), dtype=torch.uint8)
        return images

    def name(self, row: int) -> str:
        part, local = self.locate(np.array([row], dtype=np.int64))
        return self.parts[int(part[0])].name(int(local[0]))

    def describe(self) -> dict[str, Any]:
        return {"kind": "chain", "parts": [part.describe() for part in self.parts]}

    @property
    def embedded(self) -> bool:
        return any(part.embedded for part in self.parts)

    def on(self, device: torch.device) -> Source:
        # Parts on disk are decoded by worker processes, which must not hold on to a device.
        return ChainSource([part.on(device) for part in self.parts]) if self.in_memory else self


@dataclass(frozen=True)
class ImageShape:
    """What images are like: channels, height and width in pixels, and whether they live in memory."""

    channels: int
    size: int
    in_memory: bool

    @classmethod
    def of(cls, source: Source) -> ImageShape:
        return cls(source.channels, source.size, source.in_memory)

    def __str__(self) -> str:
        return f"{self.channels} x {self.size} x {self.size}"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled rows of a source, in order. ``rows`` are the stable ids of the images."""

    source: Source
    rows: Int64
    labels: Int64

    def __post_init__(self) -> None:
        if self.rows.shape != self.labels.shape or self.rows.ndim != 1:
            raise ValueError(f"rows {self.rows.shape} and labels {self.labels.shape} must be two equal lists")

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, indices: npt.NDArray[Any] | Sequence[int]) -> ImageSet:
        """The images at these positions (or where this mask is true), in that order."""
        chosen = np.asarray(indices)
        if chosen.dtype != np.bool_:
            chosen = chosen.astype(np.int64)
        return ImageSet(self.source, self.rows[chosen], self.labels[chosen])

    def relabel(self, labels: Int64) -> ImageSet:
        return ImageSet(self.source, self.rows, labels.astype(np.int64))

    def counts(self, classes: int) -> Int64:
        """Images per label 0..classes-1, from the labels alone."""
        return np.bincount(self.labels, minlength=classes).astype(np.int64)

    def join(self, other: ImageSet) -> ImageSet:
        """These images followed by the other's; sources are chained only where they differ."""
        if not len(other):
            return self
        if not len(self):
            return other
        if same(self.source, other.source):
            source, left, right = self.source, self.rows, other.rows
        else:
            parts: list[Source] = []
            for one in (self.source, other.source):
                for part in one.parts if isinstance(one, ChainSource) else (one,):
                    if not any(same(part, own) for own in parts):
                        parts.append(part)
            chain = ChainSource(parts)
            source, left, right = chain, _rows_in(chain, self), _rows_in(chain, other)
        return ImageSet(source, np.concatenate([left, right]), np.concatenate([self.labels, other.labels]))


def indices(numbers: Int64, device: torch.device) -> Tensor:
    """Numbers to index by, on a device, without waiting for what a GPU still has to do."""
    # CUDA copies an unpinned source aside at once; other devices might read it when it is gone.
    return torch.from_numpy(numbers).to(device, non_blocking=device.type == "cuda")


def _rows_in(chain: ChainSource, images: ImageSet) -> Int64:
    source = images.source
    if not isinstance(source, ChainSource):
        return images.rows + chain.offset(source)
    offsets = np.array([chain.offset(part) for part in source.parts], dtype=np.int64)
    part, local = source.locate(images.rows)
    return local + offsets[part]


def same(one: Source, other: Source) -> bool:
    """Whether two sources hold the same images: one object, or one dataset that was loaded twice."""
    return one is other or (not one.embedded and one.describe() == other.describe())


def copied(images: ImageSet, which: Callable[[Source], bool]) -> ImageSet:
    """The same images, where those of the sources that ``which`` chooses are copied into one array of their own.

    The copy lets go of all that the chosen sources held besides.
    """
    source, rows = images.source, images.rows
    parts = source.parts if isinstance(source, ChainSource) else (source,)
    chosen = np.array([which(part) for part in parts])
    part, local = source.locate(rows) if isinstance(source, ChainSource) else (np.zeros_like(rows), rows)
    moved = chosen[part]
    if not moved.any():
        return images
    copy = ArraySource(source.read(rows[moved]))
    placed = ImageSet(copy, np.cumsum(moved) - 1, images.labels)
    if moved.all():
        return placed
    chain = ChainSource([copy, *(own for own, goes in zip(parts, chosen, strict=True) if not goes)])
    offsets = np.array([0 if goes else chain.offset(own) for own, goes in zip(parts, chosen, strict=True)])
    return ImageSet(chain, np.where(moved, placed.rows, local + offsets[part]), images.labels)


def by_class(labels: Int64, classes: int) -> list[Int64]:
    """The positions of the images of each class, in order."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(1, classes)))


def empty_like(images: ImageSet) -> ImageSet:
    """No images, of the same source."""
    return images.subset(np.zeros(0, dtype=np.int64))
