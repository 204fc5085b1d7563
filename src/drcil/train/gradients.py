"""The gradients of a batch that a process sees as a whole, or that is spread over processes and parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..keys import KeyPart, batch_share, seed_torch
from ..nets.output import Output
from ..stages import Batch, Losses, Objective, Stage
from .exchange import Exchange
from .norms import SpreadNorms
from .spread import Spread
from .tally import Tally

if TYPE_CHECKING:
    from .engine import TrainingEngine

_SMALL = 64
"""Images of a process below which batch normalisation is synchronised, unless it is said."""


class Gradients:
    """Asks the net and its teachers, and runs backward from the loss."""

    def __init__(
        self,
        engine: TrainingEngine,
        stage: Stage,
        module: nn.Module,
        teachers: Mapping[str, nn.Module],
        spread: Spread,
        exchange: Exchange | None,
    ) -> None:
        """``module``: the net as its steps ask it; ``exchange``: what adds up its gradients over processes."""
        self.engine, self.stage, self.module, self.teachers = engine, stage, module, teachers
        self.spread, self.exchange = spread, exchange
        chosen, each = engine.settings.sync_batchnorm, stage.schedule.batch_size // spread.team.size
        self.norms = SpreadNorms(stage.net, spread.team, each < _SMALL if chosen is None else chosen)
        self.labels = torch.from_numpy(stage.data.labels).to(engine.device)
        self.rows = torch.from_numpy(stage.data.rows).to(engine.device)

    def add_up(self, images: Tensor, where: Tensor, total: int, key: tuple[KeyPart, ...], tally: Tally) -> None:
        """Run backward for a batch of ``total`` images, of which these are looked at here.

        ``where``: their places in the stage's data; ``key``: what the net's own draws are keyed by.
        """
        if self.spread.plain:
            seed_torch(*key)
            _, _, terms = self._asked(images, where)
            self.engine.fabric.backward(tally.add(terms, len(images)))
        else:
            self._add_up_spread(images, where, total, key, tally)

    def _add_up_spread(self, images: Tensor, where: Tensor, total: int, key: tuple[KeyPart, ...], tally: Tally) -> None:
        """Part by part. A mean over samples counts by how many of all processes' samples are in a part."""
        team, shares, whole = self.spread.team, self.spread.shares(total), self.spread.is_whole(total)
        self.norms.whole = whole
        sizes = [len(share) for share in shares]
        parts = list(zip(torch.split(images, sizes), torch.split(where, sizes), strict=True))
        counts: list[Tensor] = []
        sums: list[Tensor] = []
        for number, ((seen, places), share) in enumerate(zip(parts, shares, strict=True)):
            # For every part anew, so that an image meets the chances that it would meet in one process.
            seed_torch(*key)
            with batch_share(share):
                output, advice, terms = self._asked(seen, places)
            if number == 0:
                counts = [counts_of(terms, len(seen))]
                counts += [counts_ahead(self.stage.objective, output, advice, self._batch(at)) for _, at in parts[1:]]
                here = torch.stack(counts).sum(0)
                everywhere = here if whole else team.summed(here.clone())
            loss = weighed(terms, counts[number] / everywhere.clamp(min=1))
            last = number == len(parts) - 1
            with self.exchange.adding() if last and not whole and self.exchange is not None else nullcontext():
                self.engine.fabric.backward(loss)
            sums.append(torch.stack([term.value.detach() for term in terms.values()]) * counts[number])
            # Let go of before the next part, which is to fit in their place.
            del output, advice, loss
        self.norms.settle()
        summed = torch.stack(sums).sum(0)
        tally.note(terms, summed if whole else team.summed(summed), everywhere)

    def _asked(self, images: Tensor, where: Tensor) -> tuple[Output, dict[str, Output], Losses]:
        """What net and teachers make of images, and the loss terms."""
        with torch.no_grad():
            advice = {name: self.engine.inference.answer(teacher, images) for name, teacher in self.teachers.items()}
        output: Output = self.module(images)
        return output, advice, self.stage.objective(output, advice, self._batch(where))

    def _batch(self, where: Tensor) -> Batch:
        return Batch(self.labels[where], self.rows[where])


def counts_of(terms: Losses, size: int) -> Tensor:
    """Over how many samples each term is a mean, of ``size`` images."""
    values = [term.value for term in terms.values()]
    # Filled on the device: to copy from the host would be to wait for it.
    counts = [values[0].new_full((), size) if term.count is None else term.count for term in terms.values()]
    exact = _exact(values[0].device)
    return torch.stack([count.detach().to(values[0].device, exact) for count in counts])


def counts_ahead(objective: Objective, output: Output, advice: Mapping[str, Output], batch: Batch) -> Tensor:
    """The same for images that have not gone through the net: counts depend on labels alone, so any output will do."""
    size = len(batch.labels)

    def like(one: Output) -> Output:
        cut: Output = tree_map_only(Tensor, lambda tensor: tensor.detach()[:size], one)
        return cut

    with torch.no_grad():
        terms = objective(like(output), {name: like(one) for name, one in advice.items()}, batch)
    return counts_of(terms, size)


def weighed(terms: Losses, share: Tensor) -> Tensor:
    """The weighted sum of the terms, each by the share of its samples that are here."""
    parts = [
        term.weight * term.value * part.to(term.value.dtype)
        for term, part in zip(terms.values(), share.unbind(), strict=True)
    ]
    return torch.stack(parts).sum()


def _exact(device: torch.device) -> torch.dtype:
    """What counts and sums are added up in: double precision, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
