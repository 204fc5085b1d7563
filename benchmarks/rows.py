"""What a benchmark is, and the table of them: a name, a target, and the measurement behind it."""

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
class Benchmark:
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
    """A benchmark as it was measured."""

    benchmark: Benchmark
    measurement: Measurement

    @property
    def met(self) -> bool:
        return self.benchmark.met_by(self.measurement.value)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.benchmark.name,
            "value": self.measurement.value if self.measurement.made else None,
            "target": self.benchmark.target,
            "pass": self.met,
            "unit": self.benchmark.unit,
            "better": self.benchmark.better,
            "what": self.benchmark.what,
            "detail": self.measurement.detail,
        }


BENCHMARKS: Registry[Benchmark] = Registry("row")

Measure = Callable[[Scene], Measurement]


def benchmark(name: str, what: str, target: float, better: Better, unit: str) -> Callable[[Measure], Measure]:
    """Register a measurement under a name."""

    def keep(measure: Measure) -> Measure:
        BENCHMARKS.register(name)(Benchmark(name, what, target, better, unit, measure))
        return measure

    return keep


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names, in the table's order; all of them if none is named."""
    wanted = {BENCHMARKS[name].name for name in names} or set(BENCHMARKS)
    return [one for name, one in BENCHMARKS.items() if name in wanted]


def measure(
    benchmarks: Sequence[Benchmark], scene: Scene, begin: Callable[[Benchmark], None] = lambda benchmark: None
) -> Iterator[Row]:
    """Measure one benchmark after the other; ``begin`` hears of each before it is measured.

    One that cannot be measured here is a row too, which misses its target.
    """
    for one in benchmarks:
        begin(one)
        try:
            found = one.measure(scene)
        except (UserError, OSError, RuntimeError, SubprocessError) as error:
            why = str(error).partition("\n")[0]
            found = Measurement(math.nan, f"not measured: {why}")
        yield Row(one, found)
