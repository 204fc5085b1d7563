"""Results, records and reports for tests."""

from __future__ import annotations

from typing import Any

from drcil.experiments.summary import Mean, MetricColumns
from drcil.experiments.tables import Cell, Heading, Plot, Report, Table, task_plot
from drcil.metrics import METRICS
from drcil.runs.evidence import RunRecord
from drcil.runs.result import RunResult, TaskSummary
from drcil.settings import RunSettings

EVIL = "</script><script>alert('x')</script><b>&\"'"
AVG, LAST = Heading("digits-b0-5, memory 30", "avg"), Heading("digits-b0-5, memory 30", "last")


def result(
    settings: RunSettings | None = None, readouts: tuple[str, ...] = ("classifier",), **figures: Any
) -> RunResult:
    """The result of a run of two tasks; ``figures``: of all readouts, whose curves differ by a point each.

    Names of ``RunResult`` go into the result itself; ``trained_with``: its settings.
    """
    settings = settings or RunSettings(method="icarl", stream="digits-b0-5")
    values: dict[str, Any] = {
        "method": settings.method,
        "stream": settings.stream,
        "seed": settings.seed,
        "order_seed": settings.order_seed,
        "profile": settings.profile,
        "settings": figures.pop("trained_with", {"memory": "30", "backbone": "resnet-digits"}),
        "tasks": [2, 3],
        "complete": True,
        "metric": "avg",
        "readout": readouts[0],
        "seconds": 7.25,
    }
    values |= {name: figures.pop(name) for name in list(figures) if name in RunResult.model_fields}
    tasks = len(values["tasks"])
    curve = figures.pop("curve", [90.0, 70.0][:tasks])
    values.setdefault("per_task", [task_summary(number + 1) for number in range(tasks)])
    values["readouts"] = {}
    for number, readout in enumerate(readouts):
        own = [curve[0], *(value - number for value in curve[1:])]
        values["readouts"][readout] = {
            **dict.fromkeys(METRICS),
            "curve": own,
            "avg": sum(own) / tasks,
            "last": own[-1],
            "forgetting": 12.5,
            "matrix": [[90.0], [60.0, 80.0]][:tasks],
            "top5": [99.0] * tasks,
            "confusion": [[75.0, 25.0], [5.0, 95.0]],
            "parameters": 1000.0,
            "per_task": [{"parameters": 1000.0} for _ in range(tasks)],
            **figures,
        }
    return RunResult.model_validate(values)


def task_summary(number: int, seconds: float = 3.0) -> TaskSummary:
    return TaskSummary(number=number, new_images=10, memory_images=5, seconds=seconds, learning_seconds=1.0)


def record(
    method: str = "maf", seed: int = 0, order_seed: int = 1993, failure: str | None = None, finished: bool = True,
    readout: str | None = None, directory: str = "", **figures: Any,
) -> RunRecord:  # fmt: skip
    """A run; ``figures`` as in ``result``."""
    settings = RunSettings(method=method, stream="digits-b0-5", seed=seed, order_seed=order_seed, readout=readout)
    has_result = finished and failure is None
    return RunRecord(
        settings,
        result(settings, (readout or "classifier",), **figures) if has_result else None,
        failure,
        directory or f"runs/{settings.label}-{seed}",
        {"commit": "0123456789" * 4} if has_result else {},
    )


def report(row: str = "MAF") -> Report:
    """A table with every kind of cell, and two plots."""
    three = tuple(record(seed=seed, avg=avg) for seed, avg in enumerate((79.0, 80.0, 81.0)))
    cells = {
        (row, AVG): Cell("avg", three, 80.5),
        (row, LAST): Cell("last", three, 50.0, 0.5, published_orders=3),
        ("iCaRL", AVG): Cell("avg", (record("icarl", avg=60.0),), 61.0),
        ("iCaRL", LAST): Cell("last", (), 40.0, None, "data not found"),
        ("WA", AVG): Cell("avg", (record("wa", failure="it broke"),), 70.0),
        ("WA", LAST): Cell("last", (record("wa", 1, finished=False),), 70.0),
    }
    lines = {row: three, "iCaRL": (record("icarl", avg=60.0),)}
    curves = task_plot("F0, digits", "After each task", MetricColumns(), lines, row)
    assert curves is not None
    sweep = Plot("F9, alpha", "Swept", "alpha", "Avg (%)", {row: ((0.1, Mean(70.0, None)), (0.2, Mean(71.0, None)))})
    table = Table("T0", "Small", cells)
    return Report("A suite", "drcil reproduce T0", (table,), (curves, sweep), ("wa, seed 0: it broke",))
