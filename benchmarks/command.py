"""``make bench``: measure speed and memory against targets, each as a ratio to a plain program in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drcil import cli
from drcil.cli import options
from drcil.cli.output import console, print_json

if TYPE_CHECKING:
    from . import Benchmark, Row
    from .profile import Profile

app = typer.Typer(name="python -m benchmarks", pretty_exceptions_enable=False, add_completion=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the rows; the exit code."""
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
    from drcil.process import configure
    from drcil.report.tables import entries_table

    from . import Scene, chosen, measure
    from .machine import machine

    configure()
    benchmarks = chosen([name.strip() for given in rows or () for name in given.split(",")])
    scene, place = Scene(data), machine()
    told, screen = console(stderr=True), console()
    load = "unknown" if place["busy"] is None else place["busy"]
    told.print(f"{place['processor']}, {place['threads']} threads, load {load}; {scene.images}", markup=False)
    if profile:
        from .profile import profile_epoch

        found = profile_json(profile_epoch(scene))
        if json:
            print_json({"profile": found, "machine": place, "images": scene.images})
        else:
            screen.print(entries_table([{"name": name, "value": _short(value)} for name, value in found.items()]))
        return

    def begin(benchmark: Benchmark) -> None:
        told.print(f"{benchmarks.index(benchmark) + 1}/{len(benchmarks)} {benchmark.name}", markup=False)

    measured = []
    for row in measure(benchmarks, scene, begin):
        # At once: a row may take a minute, and what comes after it may fail.
        told.print(f"    {row_line(row)}", markup=False)
        measured.append(row)
    if json:
        print_json({"rows": [row.as_json() for row in measured], "machine": place, "images": scene.images})
    else:
        screen.print(entries_table([row_entry(row) for row in measured]))


def row_entry(row: Row) -> dict[str, Any]:
    """A row for people."""
    own, sign = row.benchmark, {"higher": "≥", "lower": "≤"}[row.benchmark.better]
    return {
        "name": own.name,
        "value": f"{_short(row.measurement.value)} {own.unit}" if row.measurement.made else "–",
        "target": f"{sign} {own.target:g}",
        "met": row.met,
        "measured": row.measurement.detail,
    }


def row_line(row: Row) -> str:
    """A row for people who wait for the others."""
    entry = row_entry(row)
    return f"{entry['value']} (target {entry['target']}): {entry['measured']}"


def profile_json(found: Profile) -> dict[str, float]:
    """A profile as names and numbers."""
    return {
        **{f"{kind}, %": share for kind, share in found.shares.items()},
        "images/s": found.images_per_second,
        "GFLOP per image": found.gflop_per_image,
        "matrix product, GFLOP/s": found.matmul_gflops,
        "limit by arithmetic, images/s": found.limit,
        "activations per image, MiB": found.mib_per_image,
        "copy, GiB/s": found.copy_gib,
        "limit by activations, images/s": found.memory_limit,
    }


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
