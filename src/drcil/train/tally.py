"""Loss terms of an epoch, summed on the device and fetched only now and then: fetching waits for the device."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..stages import Losses


class Tally:
    """Adds up weighted losses step by step."""

    def __init__(self, seconds: float = 0.5) -> None:
        self.seconds = seconds
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._fetched = time.monotonic()

    def add(self, terms: Losses, size: int) -> Tensor:
        """Note one step's terms, for ``size`` images; their weighted sum, to run backward from."""
        total: Tensor | None = None
        for name, term in terms.items():
            weighted = term.value if term.weight == 1.0 else term.weight * term.value
            total = weighted if total is None else total + weighted
            value = term.value.detach().float()
            count = value.new_full((), size) if term.count is None else term.count.detach().to(value.dtype)
            if name in self._sums:
                self._sums[name] += value * count
                self._counts[name] += count
            else:
                self._sums[name], self._counts[name] = value * count, count.clone()
            self._weights[name] = term.weight
        if total is None:
            raise ValueError("an objective returned no loss term")
        return total

    def note(self, terms: Losses, sums: Tensor, counts: Tensor) -> None:
        """Note one step's terms that were added up elsewhere: for each the sum over its samples, and their number."""
        for name, own, count in zip(terms, sums.float(), counts.float(), strict=True):
            self._sums[name] = self._sums[name] + own if name in self._sums else own
            self._counts[name] = self._counts[name] + count if name in self._counts else count
            self._weights[name] = terms[name].weight

    def peek(self) -> dict[str, float] | None:
        """The averages so far, if it is time to look again."""
        if time.monotonic() - self._fetched < self.seconds:
            return None
        self._fetched = time.monotonic()
        return self.averages()

    def averages(self) -> dict[str, float]:
        """Each term's average over its samples, and ``total``, their weighted sum."""
        names = list(self._sums)
        stacked = torch.stack([self._sums[name] / self._counts[name].clamp(min=1) for name in names])
        means = dict(zip(names, stacked.tolist(), strict=True))
        means["total"] = sum(self._weights[name] * means[name] for name in names)
        return means

    def state(self) -> dict[str, Tensor]:
        """Sum, count and weight of every term, for a snapshot."""
        return {
            name: torch.tensor([float(self._sums[name]), float(self._counts[name]), weight], dtype=torch.float64)
            for name, weight in self._weights.items()
        }

    def restore(self, state: dict[str, Tensor], device: torch.device) -> None:
        for name, entries in state.items():
            self._sums[name], self._counts[name] = entries[:2].float().to(device).unbind()
            self._weights[name] = float(entries[2])
