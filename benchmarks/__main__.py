"""``python -m benchmarks``, which is ``make bench``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from drcil import cli
from drcil.cli import options
from drcil.cli.console import console, print_json

from . import Benchmark, Row, measure_rows, select

app = typer.Typer(name="python -m benchmarks", pretty_exceptions_enable=False, add_completion=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the rows; returns the exit code."""
    return cli.main(arguments, app)


@app.command()
def bench(
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these rows, joined by commas; repeatable.", show_default="all"),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Instead: where the time of a fusion epoch goes, and the limits.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(envvar="DRCIL_DATA", help="Where datasets are, if there are any.", show_default="./data"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure speed and memory against targets; on a CPU, some minutes."""
    from drcil.experiments.writers import entries_table
    from drcil.process import configure

    from .training import profile_epoch
    from .workload import Workload

    configure()
    benchmarks = select([name.strip() for names in rows or () for name in names.split(",")])
    workload, machine = Workload(data), describe_machine()
    stderr_console, screen = console(stderr=True), console()
    load = "unknown" if machine["busy"] is None else machine["busy"]
    header = f"{machine['processor']}, {machine['threads']} threads, load {load}; {workload.description}"
    stderr_console.print(header, markup=False)
    if profile:
        figures = profile_epoch(workload)
        if json:
            print_json({"profile": figures, "machine": machine, "images": workload.description})
        else:
            screen.print(entries_table([{"name": name, "value": _short(value)} for name, value in figures.items()]))
        return

    def print_name(benchmark: Benchmark) -> None:
        stderr_console.print(f"{benchmarks.index(benchmark) + 1}/{len(benchmarks)} {benchmark.name}", markup=False)

    measured = []
    for row in measure_rows(benchmarks, workload, print_name):
        # Immediately: a row may take a minute.
        entry = table_entry(row)
        line = f"    {entry['value']} (target {entry['target']}): {entry['measured']}"
        stderr_console.print(line, markup=False)
        measured.append(row)
    if json:
        images = workload.description
        print_json({"rows": [row.as_json() for row in measured], "machine": machine, "images": images})
    else:
        screen.print(entries_table([table_entry(row) for row in measured]))


def table_entry(row: Row) -> dict[str, Any]:
    """A row of the printed table."""
    benchmark, sign = row.benchmark, {"higher": "≥", "lower": "≤"}[row.benchmark.better]
    return {
        "name": benchmark.name,
        "value": f"{_short(row.measurement.value)} {benchmark.unit}" if row.measurement.is_valid else "–",
        "target": f"{sign} {benchmark.target:g}",
        "met": row.is_met,
        "measured": row.measurement.detail,
    }


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def describe_machine() -> dict[str, Any]:
    """Processor, cores, versions and load: figures of a busy machine are not reliable."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "busy": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


if __name__ == "__main__":
    sys.exit(main())
