"""Looking without learning: features and rankings, each net seen once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from ..data.sources.imageset import ImageSet
from ..nets.output import Output, Readout


class See(Protocol):
    """The engine's way to look: what ``read`` takes from the net's outputs, joined over batches."""

    def __call__(
        self, net: nn.Module, images: ImageSet, read: Callable[[Output], Sequence[Tensor]]
    ) -> tuple[Tensor, ...]: ...


class Ranking(NamedTuple):
    """For every image the best classes, best first, and their scores: two (N, k) tensors on the CPU."""

    classes: Tensor
    scores: Tensor


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
