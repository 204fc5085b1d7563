"""Looking without learning: features and rankings, each net seen once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..data.imageset import ChainSource, ImageSet, Int64, Source
from ..stages import Output, Readout


class See(Protocol):
    """The engine's way to look: what ``read`` takes from the net's outputs, joined over batches."""

    def __call__(
        self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]
    ) -> tuple[Tensor, ...]: ...


@runtime_checkable
class _Foldable(Protocol):
    def fold(self) -> nn.Module: ...


class Ranking(NamedTuple):
    """For every image the best classes, best first, and their scores: two (N, k) tensors on the CPU."""

    classes: Tensor
    scores: Tensor


def still(net: nn.Module) -> nn.Module:
    """A frozen copy in evaluation mode, folded where the net can be folded."""
    frozen = net.fold() if isinstance(net, _Foldable) else copy.deepcopy(net)
    return frozen.eval().requires_grad_(False)


def rank(see: See, readouts: Mapping[str, Readout], images: ImageSet, best: int) -> dict[str, Ranking]:
    """The best classes by every readout, one pass per net."""
    rankings: dict[str, Ranking] = {}
    for net in {id(readout.net): readout.net for readout in readouts.values()}.values():
        shared = {name: readout for name, readout in readouts.items() if readout.net is net}

        def read(output: Output, shared: dict[str, Readout] = shared) -> list[Tensor]:
            columns: list[Tensor] = []
            for readout in shared.values():
                scores = readout.scores(output)
                top = scores.topk(min(best, scores.shape[1]), dim=1)
                columns += [top.indices, top.values]
            return columns

        columns = iter(see(net, images, read))
        rankings |= {name: Ranking(next(columns), next(columns)) for name in shared}
    return {name: rankings[name] for name in readouts}


class FeatureBank:
    """Features by image, each image seen once: herding, class means and whatever else asks share them.

    Valid as long as the net does not change.
    """

    def __init__(self, features: Callable[[ImageSet], Tensor]) -> None:
        self._features = features
        self._known: dict[int, _Known] = {}

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
