"""Counts of what a server does, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds at which the histogram of durations is cut."""
_HELP = {
    "drcil_requests_total": "Requests answered, by endpoint and status.",
    "drcil_request_seconds": "How long they took, by endpoint.",
    "drcil_images_total": "Images received, by what became of them.",
    "drcil_decoders_replaced_total": "Decoding processes that died, were too slow or were left in the middle.",
    "drcil_lessons_total": "Lessons, by how they ended.",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, one histogram, and gauges that are asked when they are read. For one thread."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Labels], int] = {("drcil_decoders_replaced_total", ()): 0}
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BOUNDS) + 1))
        self._seconds: dict[str, float] = defaultdict(float)
        self._gauges: dict[str, tuple[str, Callable[[], float | None]]] = {}

    def count(self, name: str, **labels: str) -> None:
        key = name, tuple(sorted(labels.items()))
        self._counts[key] = self._counts.get(key, 0) + 1

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        self.count("drcil_requests_total", endpoint=endpoint, status=str(status))
        self._buckets[endpoint][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[endpoint] += seconds

    def gauge(self, name: str, meaning: str, value: Callable[[], float | None]) -> None:
        self._gauges[name] = meaning, value

    def text(self) -> str:
        """All of them, as Prometheus reads them."""
        lines: list[str] = []
        for name in sorted({name for name, _ in self._counts}):
            lines += _heading(name, _HELP[name], "counter")
            counts = [(labels, value) for (counted, labels), value in self._counts.items() if counted == name]
            lines += [f"{name}{_labels(labels)} {value}" for labels, value in counts]
        lines += _heading("drcil_request_seconds", _HELP["drcil_request_seconds"], "histogram")
        for endpoint, buckets in self._buckets.items():
            total = 0
            for bound, inside in zip([*map(str, _BOUNDS), "+Inf"], buckets, strict=True):
                total += inside
                labels = _labels((("endpoint", endpoint), ("le", bound)))
                lines.append(f"drcil_request_seconds_bucket{labels} {total}")
            own = _labels((("endpoint", endpoint),))
            lines += [
                f"drcil_request_seconds_sum{own} {self._seconds[endpoint]:.6f}",
                f"drcil_request_seconds_count{own} {total}",
            ]
        for name, (meaning, value) in self._gauges.items():
            now = value()
            if now is not None:
                lines += [*_heading(name, meaning, "gauge"), f"{name} {now:.10g}"]
        return "\n".join([*lines, ""])


def resident_memory() -> float | None:
    """Bytes of this process in main memory, where the system says so."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            line = next(line for line in file if line.startswith("VmRSS:"))
        return float(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None


def _heading(name: str, meaning: str, kind: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    """
    >>> _labels((("endpoint", "/predict"), ("status", "200")))
    '{endpoint="/predict",status="200"}'
    """
    quoted = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{quoted}}}" if quoted else ""
