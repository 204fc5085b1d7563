"""What the paper's tables and figures cost on this machine: the seconds of each of their runs, trained once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..paper.asked import Asked, trained_once
from ..runs.settings import RunSettings
from .cost import Costs, conditions
from .paces import Paces


@dataclass(frozen=True)
class Prices:
    """The seconds of runs by their commands, under some conditions."""

    conditions: str
    seconds: Mapping[str, float]
    sought: bool = False
    """Whether what is not known cannot be foretold at all."""

    def of(self, asked: Iterable[Asked]) -> float | None:
        """Of all these runs, one at a time; None where some are not known. What several ask for counts once."""
        known = [self.seconds.get(one.command()) for one in trained_once(asked)]
        return None if None in known else sum(own for own in known if own is not None)


def known_prices(paces: Paces, device: str, precision: str, threads: int) -> Prices:
    """What was found out before."""
    own = conditions(device, precision, threads)
    return Prices(own, paces.runs(own))


def find_prices(
    asked: Iterable[Asked], costs: Costs, paces: Paces, prepared: Callable[[Asked], RunSettings], own: str
) -> Prices:
    """What all these runs take under these conditions; what was found out is kept, and not asked again.

    ``prepared``: a run's settings under these conditions.
    """
    found, known = {}, paces.runs(own)
    for one in trained_once(asked):
        seconds = None if one.command() in known else costs.of(prepared(one))
        if seconds is not None:
            found[one.command()] = sum(seconds)
    paces.keep_runs(own, found)
    return Prices(own, paces.runs(own), sought=True)
