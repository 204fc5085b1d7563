"""ImageSet: labelled images of one or several sources; in-memory and placeholder sources.

A *source* holds images that are addressed by row; it never changes. An *image set* is a list of images of one or
several sources with a label each. Subsets and joins copy numbers, never pixels.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..seeding import derive_seed, generator
from .augment.pipelines import resized_crop
from .decoding import random_box
from .source_refs import DatasetRef, EmbeddedRef, LeafRef

if TYPE_CHECKING:
    from .loader import PictureCache

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class CropDraw(NamedTuple):
    """Random crops of a training epoch. Each depends on the key of the epoch and on the position of the image in it.

    So an image that an epoch takes several times is cropped in several ways.
    """

    key: int
    positions: Int64
    """One per image that is read."""
    mask: Mask | None = None
    """Which images are cropped; the others are read in their test view. None: all."""

    def subset(self, indices: Int64) -> CropDraw:
        return CropDraw(self.key, self.positions[indices], None if self.mask is None else self.mask[indices])

    def seeds(self) -> list[int | None]:
        """The seed of each crop; None: test view."""
        mask = np.ones(len(self.positions), dtype=np.bool_) if self.mask is None else self.mask
        pairs = zip(self.positions.tolist(), mask.tolist(), strict=True)
        return [derive_seed(self.key, position) if is_cropped else None for position, is_cropped in pairs]

    def apply(self, images: Tensor) -> Tensor:
        """Crop images in memory as files are cropped.

        Both kinds meet where a learner of files gets arrays, or finds its exemplars saved as pixels.
        """
        cropped = np.arange(len(images)) if self.mask is None else np.flatnonzero(self.mask)
        if not len(cropped):
            return images
        size = images.shape[-1]
        boxes = [random_box(size, size, Random(seed)) for seed in self.subset(cropped).seeds()]
        corners = torch.tensor([(box.top, box.left, box.height, box.width) for box in boxes])
        rows = indices(cropped, images.device)
        images[rows] = resized_crop(images[rows], corners)
        return images


@dataclass(frozen=True)
class ImageShape:
    """Channels, height and width of images in pixels, and whether they are in memory, which does not count as shape."""

    channels: int
    size: int
    in_memory: bool = field(compare=False)

    def __str__(self) -> str:
        return f"{self.channels} x {self.size} x {self.size}"


class Source(ABC):
    """Images by row. ``in_memory`` says whether reading is a gather (cheap) or decoding (worth worker processes)."""

    in_memory: bool = False
    is_encoded: bool = False
    """Whether every image is an encoded file, which ``file_bytes`` returns."""
    channels: int = 3
    size: int
    """Height and width, in pixels, of what ``read`` returns."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        """The images as uint8 (N, C, size, size): test views, or the random crops of ``crops``.

        ``cache``: where decoded files are looked up and stored.
        """

    @property
    def ref(self) -> LeafRef:
        """How to find these images again; ``EmbeddedRef`` if a model can only keep a copy of them."""
        return EmbeddedRef()

    @property
    def is_embedded(self) -> bool:
        """Whether a model can only keep a copy of these images."""
        return isinstance(self.ref, EmbeddedRef)

    @property
    def shape(self) -> ImageShape:
        return ImageShape(self.channels, self.size, self.in_memory)

    def name(self, row: int) -> str:
        """The name of an image in error messages."""
        return f"image {row} of {self.ref.name if isinstance(self.ref, DatasetRef) else 'those given'}"

    def digest(self, row: int) -> bytes:
        """A hash of the pixels of an image, or of the file that has them."""
        return hashlib.sha256(self.read(np.array([row], dtype=np.int64)).cpu().numpy().tobytes()).digest()

    def stored_bytes(self) -> int | None:
        """Bytes of an average image on disk, if ``digest`` hashes these; else None."""
        return None

    def on(self, device: torch.device) -> Source:
        """These images in a device's memory, if they are in memory at all."""
        return self

    def has_same_images(self, other: Source) -> bool:
        """Whether both are one object, or one dataset that was loaded twice."""
        return self is other or (not self.is_embedded and self.ref == other.ref)


class ArraySource(Source):
    """Images in memory, as one uint8 tensor (N, C, H, W). The test view is the image itself."""

    in_memory = True

    def __init__(self, pixels: Tensor, ref: LeafRef | None = None) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[2] != pixels.shape[3]:
            raise ValueError(f"pixels must be uint8 (N, C, S, S), not {pixels.dtype} {tuple(pixels.shape)}")
        self.pixels = pixels
        self.channels = pixels.shape[1]
        self.size = pixels.shape[2]
        self._ref = ref or EmbeddedRef()
        self._copies: dict[torch.device, ArraySource] = {}

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def ref(self) -> LeafRef:
        return self._ref

    def on(self, device: torch.device) -> ArraySource:
        """These images in a device's memory; moved there once."""
        if device not in self._copies:
            self._copies[device] = ArraySource(self.pixels.to(device), self._ref)
        return self._copies[device]

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        images = self.pixels[indices(rows, self.pixels.device)]
        return images if crops is None else crops.apply(images)


_PLACEHOLDERS = 64


class PlaceholderSource(Source):
    """Any number of dummy images in little memory: rows share their pixels."""

    def __init__(self, length: int, channels: int, size: int, in_memory: bool = True) -> None:
        self._length, self.channels, self.size, self.in_memory = length, channels, size, in_memory
        self._pixels: Tensor | None = None

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Int64, crops: CropDraw | None = None, cache: PictureCache | None = None) -> Tensor:
        if self._pixels is None:
            shape = (_PLACEHOLDERS, self.channels, self.size, self.size)
            self._pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator("blank"))
        images = self._pixels[indices(rows % _PLACEHOLDERS, self._pixels.device)]
        return crops.apply(images) if crops is not None and self.in_memory else images


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in order. An image is identified by (source, row), which subsets and joins keep."""

    sources: tuple[Source, ...]
    source_index: Int64
    """The position in ``sources`` of the source of each image."""
    rows: Int64
    labels: Int64

    def __post_init__(self) -> None:
        if self.rows.shape != self.labels.shape or self.rows.ndim != 1:
            raise ValueError(f"rows {self.rows.shape} and labels {self.labels.shape} must be two equal lists")
        shapes = {(source.channels, source.size) for source in self.sources}
        if len(shapes) != 1:
            raise ValueError(f"an image set cannot have images of different shapes: {sorted(shapes)}")

    @classmethod
    def of(cls, source: Source, rows: Int64, labels: Int64) -> ImageSet:
        """Rows of one source, with labels."""
        zeros = np.broadcast_to(np.int64(0), rows.shape)  # Takes no memory.
        return cls((source,), zeros, rows, labels)

    @classmethod
    def unlabelled(cls, source: Source) -> ImageSet:
        """All images of a source, with label 0."""
        rows = np.arange(len(source), dtype=np.int64)
        return cls.of(source, rows, np.zeros_like(rows))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def source(self) -> Source:
        """The source of a set that has one source, as the sets of a dataset do."""
        (source,) = self.sources
        return source

    @property
    def shape(self) -> ImageShape:
        first = self.sources[0]
        return ImageShape(first.channels, first.size, all(source.in_memory for source in self.sources))

    @property
    def ids(self) -> Int64:
        """A number per image that is unique in this set; the row where there is one source."""
        return self.rows + (self.source_index << 40)

    def name(self, position: int) -> str:
        """The name of an image in error messages."""
        return self.sources[int(self.source_index[position])].name(int(self.rows[position]))

    def read(
        self,
        positions: Int64 | slice = slice(None),
        crops: CropDraw | None = None,
        cache: PictureCache | None = None,
    ) -> Tensor:
        """The images at these positions, as uint8 (N, C, size, size); arguments as in ``Source.read``."""
        rows = self.rows[positions]
        if len(self.sources) == 1:
            return self.sources[0].read(rows, crops, cache)
        source_index = self.source_index[positions]
        images: Tensor | None = None
        for index in np.unique(source_index):
            source_rows = np.flatnonzero(source_index == index)
            pixels = self.sources[index].read(rows[source_rows], crops and crops.subset(source_rows), cache)
            if images is None:
                images = pixels.new_empty((len(rows), *pixels.shape[1:]))
            images[indices(source_rows, images.device)] = pixels
        if images is None:
            return torch.empty((0, self.shape.channels, self.shape.size, self.shape.size), dtype=torch.uint8)
        return images

    def subset(self, positions: npt.NDArray[Any] | Sequence[int]) -> ImageSet:
        """The images at these positions, in that order, or where a mask is true."""
        index = np.asarray(positions)
        if index.dtype != np.bool_:
            index = index.astype(np.int64)
        if len(self.sources) == 1:
            return ImageSet.of(self.sources[0], self.rows[index], self.labels[index])
        return ImageSet(self.sources, self.source_index[index], self.rows[index], self.labels[index])

    def relabel(self, labels: Int64) -> ImageSet:
        return ImageSet(self.sources, self.source_index, self.rows, labels.astype(np.int64))

    def counts(self, classes: int) -> Int64:
        """Images per label 0..classes-1, from the labels alone."""
        return np.bincount(self.labels, minlength=classes).astype(np.int64)

    def join(self, other: ImageSet) -> ImageSet:
        """These images followed by the other's."""
        if not len(other):
            return self
        if not len(self):
            return other
        sources = list(self.sources)
        positions = np.empty(len(other.sources), dtype=np.int64)
        for number, source in enumerate(other.sources):
            matches = [index for index, present in enumerate(sources) if present.has_same_images(source)]
            positions[number] = matches[0] if matches else len(sources)
            if not matches:
                sources.append(source)
        rows, labels = np.concatenate([self.rows, other.rows]), np.concatenate([self.labels, other.labels])
        if len(sources) == 1:
            return ImageSet.of(sources[0], rows, labels)
        source_index = np.concatenate([self.source_index, positions[other.source_index]])
        return ImageSet(tuple(sources), source_index, rows, labels)

    def copied_to_memory(self, is_copied: Callable[[Source], bool]) -> ImageSet:
        """The same images, with those of some sources copied into one array, which replaces these sources."""
        copied_sources = np.array([is_copied(source) for source in self.sources])
        copied = copied_sources[self.source_index]
        if not copied.any():
            return self
        copy = ArraySource(self.read(np.flatnonzero(copied)))
        others = () if copied.all() else tuple(source for source in self.sources if not is_copied(source))
        # The copy is the first source; the others follow in their order.
        positions = np.where(copied_sources, 0, np.cumsum(~copied_sources))
        rows = np.where(copied, np.cumsum(copied) - 1, self.rows)
        return ImageSet((copy, *others), positions[self.source_index], rows, self.labels)

    def on(self, device: torch.device) -> ImageSet:
        """These images in a device's memory, if all are in memory.

        Files are decoded by worker processes, which must not use a device.
        """
        if not self.shape.in_memory:
            return self
        return ImageSet(tuple(source.on(device) for source in self.sources), self.source_index, self.rows, self.labels)


def indices(numbers: Int64, device: torch.device) -> Tensor:
    """An index tensor on a device, copied without synchronising with the GPU."""
    # CUDA copies unpinned memory immediately; other devices might read it after it is freed.
    return torch.from_numpy(numbers).to(device, non_blocking=device.type == "cuda")


def by_class(labels: Int64, classes: int) -> list[Int64]:
    """The positions of the images of each class, in order."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(1, classes)))


def empty_like(images: ImageSet) -> ImageSet:
    """No images, of the same sources."""
    return images.subset(np.zeros(0, dtype=np.int64))
