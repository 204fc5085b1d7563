"""Looking without learning: features and rankings, each net seen once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..data.imageset import ChainSource, ImageSet, Int64, Source
from ..stages import Output, Readout


class Seeing(Protocol):
    """The part of the engine that inference needs."""

    def see(self, net: nn.Module, images: ImageSet) -> Iterator[Output]: ...


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


def run(
    engine: Seeing, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """What ``read`` takes from every batch's output, joined, on the CPU."""
    parts = [tuple(tensor.float().cpu() for tensor in read(output)) for output in engine.see(net, images)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def rank(engine: Seeing, readouts: Mapping[str, Readout], images: ImageSet, best: int) -> dict[str, Ranking]:
    rankings: dict[str, Ranking] = {}
    for net in {id(readout.net): readout.net for readout in readouts.values()}.values():
        shared = {name: readout for name, readout in readouts.items() if readout.net is net}

        def read(output: Output, shared: dict[str, Readout] = shared) -> list[Tensor]:
            columns: list[Tensor] = []
            for readout in shared.values():
                scores = readout.scores(output).float()
                top = scores.topk(min(best, scores.shape[1]), dim=1)
                columns += [top.indices, top.values]
            return columns

        columns = run(engine, net, images, read)
        for index, name in enumerate(shared):
            rankings[name] = Ranking(columns[2 * index].long(), columns[2 * index + 1])
    return {name: rankings[name] for name in readouts}


class FeatureBank:
    """Features by image, each image seen once: herding, class means and whatever else asks share them.

    Valid as long as the net does not change.
    """

    def __init__(self, features: Callable[[ImageSet], Tensor]) -> None:
        self._features = features
        self._known: list[tuple[Source, Int64, Tensor]] = []

    def __call__(self, images: ImageSet) -> Tensor:
        if isinstance(images.source, ChainSource):
            return self._chained(images, images.source)
        if not len(images):
            return self._features(images) if self._known == [] else self._known[0][2][:0]
        index = next((i for i, (source, _, _) in enumerate(self._known) if source is images.source), None)
        if index is None:
            rows, first = np.unique(images.rows, return_index=True)
            self._known.append((images.source, rows, self._features(images.subset(first))))
            index = len(self._known) - 1
        source, rows, features = self._known[index]
        missing, first = np.unique(images.rows, return_index=True)
        fresh = ~np.isin(missing, rows)
        if fresh.any():
            seen = self._features(images.subset(first[fresh]))
            order = np.argsort(np.concatenate([rows, missing[fresh]]), kind="stable")
            rows = np.concatenate([rows, missing[fresh]])[order]
            features = torch.cat([features, seen])[torch.from_numpy(order)]
            self._known[index] = (source, rows, features)
        return features[torch.from_numpy(np.searchsorted(rows, images.rows))]

    def _chained(self, images: ImageSet, chain: ChainSource) -> Tensor:
        part, local = chain.locate(images.rows)
        pieces: list[Tensor] = []
        places: list[Int64] = []
        for index in np.unique(part):
            here = np.flatnonzero(part == index).astype(np.int64)
            pieces.append(self(ImageSet(chain.parts[index], local[here], images.labels[here])))
            places.append(here)
        return torch.cat(pieces)[torch.from_numpy(np.argsort(np.concatenate(places)))]
