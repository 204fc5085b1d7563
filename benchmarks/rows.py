"""What a figure is, and the table of them: a name, a target, and the measurement behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from subprocess import SubprocessError
from typing import Any, Literal

from drcil.errors import UserError
from drcil.registry import Registry

from .scene import Scene

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Measurement:
    """A value, and in words what it was made from; or no number, and why there is none."""

    value: float
    detail: str

    @property
    def made(self) -> bool:
        return not math.isnan(self.value)


@dataclass(frozen=True)
class Figure:
    """Something that can be measured, and what it should come to."""

    name: str
    what: str
    target: float
    better: Better
    unit: str
    measure: Callable[[Scene], Measurement]

    def met_by(self, value: float) -> bool:
        """Whether a value reaches the target. What is not a number does not."""
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True)
class Row:
    """A figure as it was measured."""

    figure: Figure
    measurement: Measurement

    @property
    def met(self) -> bool:
        return self.figure.met_by(self.measurement.value)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.figure.name,
            "value": self.measurement.value if self.measurement.made else None,
            "target": self.figure.target,
            "pass": self.met,
            "unit": self.figure.unit,
            "better": self.figure.better,
            "what": self.figure.what,
            "detail": self.measurement.detail,
        }


FIGURES: Registry[Figure] = Registry("row")

Measure = Callable[[Scene], Measurement]


def figure(name: str, what: str, target: float, better: Better, unit: str) -> Callable[[Measure], Measure]:
    """Register a measurement under a name."""

    def keep(measure: Measure) -> Measure:
        FIGURES.register(name)(Figure(name, what, target, better, unit, measure))
        return measure

    return keep


def chosen(names: Sequence[str]) -> list[Figure]:
    """The figures of these names, in the table's order; all of them if none is named."""
    wanted = {FIGURES[name].name for name in names} or set(FIGURES)
    return [one for name, one in FIGURES.items() if name in wanted]


def measure(
    figures: Sequence[Figure], scene: Scene, begin: Callable[[Figure], None] = lambda figure: None
) -> Iterator[Row]:
    """Measure one figure after the other; ``begin`` hears of each before it is measured.

    One that cannot be measured here is a row too, which misses its target.
    """
    for one in figures:
        begin(one)
        try:
            found = one.measure(scene)
        except (UserError, OSError, RuntimeError, SubprocessError) as error:
            why = str(error).partition("\n")[0]
            found = Measurement(math.nan, f"not measured: {why}")
        yield Row(one, found)
