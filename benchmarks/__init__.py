"""``make bench``: speed and memory of drcil against plain programs that do the same work.

A benchmark is a function under the decorator ``benchmark``, which also has its target. ``references.py`` has the plain
programs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any, Literal

from drcil.errors import UserError
from drcil.registry import Registry

if TYPE_CHECKING:
    from .workload import Workload

_MODULES = ("training", "data", "memory", "startup", "distributed", "serving")
"""In the order in which their rows are measured."""

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Measurement:
    """A value and the figures it is computed from; NaN and the reason if it cannot be measured here."""

    value: float
    detail: str

    @property
    def is_valid(self) -> bool:
        return not math.isnan(self.value)


Measure = Callable[["Workload"], Measurement]


@dataclass(frozen=True)
class Benchmark:
    """A measurement and its target."""

    name: str
    description: str
    target: float
    better: Better
    unit: str
    measure: Measure


@dataclass(frozen=True)
class Row:
    """A measured benchmark."""

    benchmark: Benchmark
    measurement: Measurement

    @property
    def is_met(self) -> bool:
        """Whether the value reaches the target; NaN does not."""
        value, target = self.measurement.value, self.benchmark.target
        return value >= target if self.benchmark.better == "higher" else value <= target

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.benchmark.name,
            "value": self.measurement.value if self.measurement.is_valid else None,
            "target": self.benchmark.target,
            "pass": self.is_met,
            "unit": self.benchmark.unit,
            "better": self.benchmark.better,
            "what": self.benchmark.description,
            "detail": self.measurement.detail,
        }


BENCHMARKS: Registry[Benchmark] = Registry("row")


def benchmark(name: str, description: str, *, target: float, better: Better, unit: str) -> Callable[[Measure], Measure]:
    """Register a function that measures as the row ``name``."""

    def register(measure: Measure) -> Measure:
        BENCHMARKS.register(name)(Benchmark(name, description, target, better, unit, measure))
        return measure

    return register


def select(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names in the order of the table; all of them if there are no names."""
    for module in _MODULES:
        import_module(f"{__name__}.{module}")
    selected = {BENCHMARKS[name].name for name in names} or set(BENCHMARKS)
    return [entry for name, entry in BENCHMARKS.items() if name in selected]


def measure_rows(
    benchmarks: Sequence[Benchmark], workload: Workload, on_start: Callable[[Benchmark], None] = lambda benchmark: None
) -> Iterator[Row]:
    """Measure one benchmark after the other. One that cannot be measured here is a row that misses its target."""
    for entry in benchmarks:
        on_start(entry)
        try:
            measurement = entry.measure(workload)
        except (UserError, OSError, RuntimeError, SubprocessError) as error:
            reason = str(error).partition("\n")[0]
            measurement = Measurement(math.nan, f"not measured: {reason}")
        yield Row(entry, measurement)


Timed = Callable[[], float]
"""Does some work and returns its seconds."""


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(rounds: int, *works: Timed) -> list[float]:
    """The least seconds of each work. They take turns, so that disturbances affect all of them."""
    times = [[work() for work in works] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]
