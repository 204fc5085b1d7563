"""Features by image, each image seen once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..data.sources.imageset import ChainSource, ImageSet, Int64, Source


class FeatureBank:
    """Features by image, each image seen once: herding, class means and whatever else asks share them.

    Valid as long as the net does not change. What it gives is not to be changed: where the same images are asked for
    as before it is what is kept, and not a copy.
    """

    def __init__(self, features: Callable[[ImageSet], Tensor]) -> None:
        self._features = features
        self._known: dict[int, _Known] = {}

    @property
    def known(self) -> int:
        """How many images were seen."""
        return sum(len(known.rows) for known in self._known.values())

    def __call__(self, images: ImageSet) -> Tensor:
        if isinstance(images.source, ChainSource):
            return self._chained(images, images.source)
        known = self._known.setdefault(id(images.source), _Known(images.source))
        fresh = known.unseen(images.rows)
        if len(fresh) or not len(images):
            seen = images if len(fresh) == len(images) else images.subset(fresh)
            known.add(seen.rows, self._features(seen))
        return known.of(images.rows)

    def _chained(self, images: ImageSet, chain: ChainSource) -> Tensor:
        """Ask for each part's images by themselves, and put them where they belong."""
        part, local = chain.locate(images.rows)
        found: Tensor | None = None
        for index in np.unique(part):
            here = np.flatnonzero(part == index).astype(np.int64)
            own = self(ImageSet(chain.parts[index], local[here], images.labels[here]))
            if len(here) == len(images):
                return own
            found = own.new_empty(len(images), *own.shape[1:]) if found is None else found
            found[torch.from_numpy(here)] = own
        assert found is not None
        return found


class _Known:
    """Features of some rows of a source, in blocks as they were computed.

    They are neither sorted nor joined: for a moment that would take them twice.
    """

    def __init__(self, source: Source) -> None:
        self.source = source  # Held so that its id stays its own.
        self.rows = np.zeros(0, dtype=np.int64)
        """Sorted."""
        self._places = np.zeros(0, dtype=np.int64)
        """Where the features of each are, counted over all blocks."""
        self._blocks: list[Tensor] = []

    def unseen(self, rows: Int64) -> Int64:
        """The positions of rows that are not known, each once, in order."""
        first = np.unique(rows, return_index=True)[1]
        return np.sort(first[~np.isin(rows[first], self.rows)])

    def add(self, rows: Int64, features: Tensor) -> None:
        places = np.concatenate([self._places, np.arange(len(rows)) + len(self.rows)])
        joined = np.concatenate([self.rows, rows])
        order = np.argsort(joined)
        self.rows, self._places = joined[order], places[order]
        self._blocks.append(features)

    def of(self, rows: Int64) -> Tensor:
        places = self._places[np.searchsorted(self.rows, rows)]
        found: Tensor | None = None
        start = 0
        for block in self._blocks:
            here = np.flatnonzero((places >= start) & (places < start + len(block)))
            own = places[here] - start
            start += len(block)
            if len(here) == len(places):
                return block if np.array_equal(own, np.arange(len(block))) else block[torch.from_numpy(own)]
            if len(here):
                found = block.new_empty(len(rows), *block.shape[1:]) if found is None else found
                found[torch.from_numpy(here)] = block[torch.from_numpy(own)]
        assert found is not None
        return found
