"""Runs and the means of their figures. Class orders are independent of each other, and so are the seeds of one order;
seeds of several orders are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from ..streams.protocols import ORDER_SEED
from .about import About
from .figures import figure_of

_NAMED = 5
"""Rows that a sentence names."""


@dataclass(frozen=True)
class Outcome:
    """One run among others: its result, or why there is none."""

    method: str
    """As it was named, perhaps with a readout."""
    seed: int
    directory: str
    result: dict[str, Any] | None
    failure: str | None = None
    about: About | None = None
    """How it was carried out; None: not known."""
    order_seed: int = ORDER_SEED
    """Of its class order."""

    def metric(self, name: str) -> Any:
        """A metric of the readout that leads; None where there is no result, or none of it."""
        return None if self.result is None else figure_of(self.result, name)


@dataclass(frozen=True)
class Figure:
    """A mean and its standard error; of a single value there is no error."""

    mean: float
    error: float | None


def figure(values: Sequence[float]) -> Figure:
    """Mean and s / √n, where s is the sample's standard deviation (divided by n − 1).

    >>> figure([1.0, 2.0, 6.0])
    Figure(mean=3.0, error=1.5275252316519468)
    """
    return Figure(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def independent(outcomes: Sequence[Outcome], values: Iterable[float | None]) -> list[float]:
    """Of the values of runs (None: it has none) as many as are independent.

    Where runs were asked for in several class orders: one of each order, the mean over its seeds. Else one of each
    seed. A run that was carried out twice counts once.
    """
    orders: dict[int, dict[int, list[float]]] = {}
    for one, value in zip(outcomes, values, strict=True):
        if value is not None:
            orders.setdefault(one.order_seed, {}).setdefault(one.seed, []).append(float(value))
    seeds = [[fmean(again) for again in own.values()] for own in orders.values()]
    return [fmean(own) for own in seeds] if several_orders(outcomes) else [one for own in seeds for one in own]


def several_orders(outcomes: Sequence[Outcome]) -> bool:
    """Whether runs were asked for in more than one class order, finished or not."""
    return len({one.order_seed for one in outcomes}) > 1


def counted(outcomes: Sequence[Outcome]) -> str:
    """Over what the mean of these runs is: how many class orders or seeds, and whether runs are lacking.

    >>> runs = [Outcome("maf", seed, "", {}, order_seed=order) for order in (1, 2, 3) for seed in (0, 1)]
    >>> counted(runs), counted(runs[:2]), counted(runs[:1])
    ('3 class orders, 2 seeds each', '2 seeds', 'one run')
    >>> counted([*runs[:3], Outcome("maf", 0, "", None, order_seed=3)])
    '2 class orders, 1 to 2 seeds each (3 of 4 runs)'
    """
    finished = [one for one in outcomes if one.result is not None]
    seeds: dict[int, set[int]] = {}
    for one in finished:
        seeds.setdefault(one.order_seed, set()).add(one.seed)
    counts = sorted(len(own) for own in seeds.values())
    if not counts:
        words = "no run"
    elif several_orders(outcomes):
        each = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
        words = "one class order" if len(counts) == 1 else f"{len(counts)} class orders"
        words += f", {each} seeds{' each' if len(counts) > 1 else ''}" if counts[-1] > 1 else ""
    else:
        words = "one run" if counts == [1] else f"{counts[0]} seeds"
    return words if len(finished) == len(outcomes) else f"{words} ({len(finished)} of {len(outcomes)} runs)"


def means_over(rows: Mapping[str, Sequence[Outcome]]) -> str:
    """What the figures of rows are means over, and what their errors are over; rows that differ from most are named.

    >>> one, other = Outcome("maf", 0, "", {}), Outcome("maf", 1, "", {})
    >>> means_over({"maf": [one], "wa": [one]}), means_over({"maf": [one, other], "wa": [one, other], "bic": [one]})
    ('One run of each', 'Mean over 2 seeds, with the standard error over seeds; bic: one run')
    >>> means_over({"maf": [one, Outcome("maf", 1, "", None)]})
    'One run of each (1 of 2 runs)'
    """
    told: dict[str, list[str]] = {}
    errors: set[str] = set()
    for row, outcomes in rows.items():
        if any(one.result is not None for one in outcomes):
            told.setdefault(counted(outcomes), []).append(row)
            if len(independent(outcomes, (None if one.result is None else 0.0 for one in outcomes))) > 1:
                errors.add("class orders" if several_orders(outcomes) else "seeds")
    if not told:
        return ""
    (usual, _), *others = sorted(told.items(), key=lambda item: -len(item[1]))
    single = usual.startswith("one run")
    sentence = usual.replace("one run", "One run of each", 1) if single else f"Mean over {usual}"
    sentence += f", with the standard error over {' or '.join(sorted(errors))}" if errors else ""
    return "; ".join([sentence, *(f"{_named(names)}: {words}" for words, names in others)])


def captioned(caption: str, rows: Mapping[str, Sequence[Outcome]]) -> str:
    """A caption, with what the figures are means over."""
    over = means_over(rows)
    return f"{caption.removesuffix('.')}. {over}." if over else caption


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
