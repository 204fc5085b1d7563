"""Features by image, each image seen once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.sources.imageset import ChainSource, ImageSet, Int64, Source


class FeatureBank:
    """Features by image, each image seen once: herding, class means and whatever else asks share them.

    Valid as long as the net does not change.
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
        rows, first = np.unique(images.rows, return_index=True)
        known = self._known.get(id(images.source))
        if known is not None:
            first = first[~np.isin(rows, known.rows)]
        if known is None or len(first):
            fresh = images.subset(first)
            known = _Known(images.source, fresh.rows, self._features(fresh)).joined(known)
            self._known[id(images.source)] = known
        return known.features[torch.from_numpy(np.searchsorted(known.rows, images.rows))]

    def _chained(self, images: ImageSet, chain: ChainSource) -> Tensor:
        """Ask for each part's images by themselves, then put them back in order."""
        part, local = chain.locate(images.rows)
        pieces: list[Tensor] = []
        places: list[Int64] = []
        for index in np.unique(part):
            here = np.flatnonzero(part == index).astype(np.int64)
            pieces.append(self(ImageSet(chain.parts[index], local[here], images.labels[here])))
            places.append(here)
        return torch.cat(pieces)[torch.from_numpy(np.argsort(np.concatenate(places)))]


class _Known(NamedTuple):
    """Features of some rows of a source, sorted by row. The source is held so that its id stays its own."""

    source: Source
    rows: Int64
    features: Tensor

    def joined(self, other: _Known | None) -> _Known:
        if other is None:
            return self
        rows = np.concatenate([self.rows, other.rows])
        order = np.argsort(rows)
        return _Known(self.source, rows[order], torch.cat([self.features, other.features])[torch.from_numpy(order)])
