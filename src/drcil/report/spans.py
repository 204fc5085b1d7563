"""Which values an axis has to show, and where it begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor


def reached(values: Sequence[float | None], errors: Sequence[float | None] | None) -> list[float]:
    """The ends of the band about a line: what an axis has to show.

    >>> reached([90.0, None, 80.0], [1.0, None, 2.0]), reached([90.0], None)
    ([89.0, 91.0, 78.0, 82.0], [90.0, 90.0])
    """
    pairs = zip(values, errors or [None] * len(values), strict=True)
    return [end for value, error in pairs if value is not None for end in (value - (error or 0), value + (error or 0))]


def limits(lowest: float, highest: float, percent: bool = True) -> tuple[float, float]:
    """Of an axis on which values from the lowest to the highest are told apart.

    >>> limits(21.0, 88.0), limits(72.31, 74.02), limits(100.0, 100.0), limits(30.0, 500.0, percent=False)
    ((20, 90), (72, 75), (99, 100), (0, 525.0))
    """
    if not percent:
        return (0, 1.05 * highest)
    span = highest - lowest
    step = 10 if span > 10 else 5 if span > 5 else 1
    top = min(100, step * ceil((highest + step / 100) / step))
    return (max(0, min(step * floor(lowest / step), top - step)), top)
