"""``python tools/budgets.py RUN… --out DIRECTORY``: accuracy against the number of epochs.

A line for every method and schedule, a point for every number of epochs: Avg against minutes, and against the images
that were trained on. Runs that differ by their seeds alone share a point. ``docs/performance.md`` has such a plot.

Where others compute on the same machine, minutes on the clock say little. With ``--processor`` those count that a run
kept a processor busy, as ``time -f '%U %S' -o RUN.time drcil run … --out RUN`` leaves them beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from drcil.errors import UserError
from drcil.experiments.plots import plot_lines
from drcil.experiments.summary import Mean, mean_of
from drcil.experiments.tables import Plot
from drcil.files import write_bytes
from drcil.methods.recipe import RECIPE
from drcil.runs.execution import Run
from drcil.runs.run_files import EVENTS, event_of, read_events
from drcil.train.events import StageStarted


@dataclass(frozen=True)
class Spent:
    """A run: what it was given, and what it reached."""

    method: str
    schedule: str
    share: float
    """Of the recipe's epochs."""
    seed: int
    stream: str
    rest: Mapping[str, Any]
    """All else that was chosen."""
    images: int
    """Trained on, each as often as it was seen."""
    seconds: float
    avg: float

    @property
    def line(self) -> str:
        return f"{self.method}, {self.schedule}"


@dataclass(frozen=True)
class Point:
    """Runs of one method, schedule and number of epochs."""

    line: str
    share: float
    images: float
    """In thousands."""
    minutes: float
    avg: Mean
    seeds: tuple[int, ...]


def spent_by(directory: Path, processor: bool = False) -> Spent:
    """What a finished run says of itself; with ``processor`` its time is that of the processor."""
    run = Run.read(directory)
    own, result, entries = run.settings, run.result(), read_events(directory / EVENTS)
    if not result.complete:
        raise UserError(f"{directory} is not finished")
    if not processor and sum(entry.get("event") == "Started" for entry in entries) > 1:
        raise UserError(f"{directory} was interrupted, and does not know how long it took in all; see --processor")
    told_apart = {"seed", "schedule", "epochs_scale"}
    return Spent(
        method=own.label,
        schedule=own.schedule or RECIPE,
        share=own.epochs_scale,
        seed=own.seed,
        stream=f"{own.stream}, {len(result.tasks)} tasks",
        rest={name: value for name, value in own.identity().items() if name not in told_apart},
        images=images_trained(entries),
        seconds=processor_seconds(directory) if processor else result.seconds,
        avg=result.figure("avg"),
    )


def processor_seconds(directory: Path) -> float:
    """What the file beside a run has: seconds of its own and of the system for it."""
    path = directory.with_name(f"{directory.name}.time")
    try:
        user, system, *_ = path.read_text().split()
        return float(user) + float(system)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is to have two numbers, seconds of user and system: {error}") from error


def images_trained(entries: Iterable[dict[str, object]]) -> int:
    """Images times epochs over all stages. A stage that was resumed began more than once, and counts once."""
    stages: dict[tuple[int, str], int] = {}
    for entry in entries:
        event = event_of(entry)
        if isinstance(event, StageStarted):
            stages[event.task, event.stage] = event.images * event.epochs
    return sum(stages.values())


def points_of(runs: Sequence[Spent]) -> list[Point]:
    """The points, line by line and from the fewest epochs on."""
    points = []
    ordered = sorted(runs, key=lambda run: (run.line, run.share, run.seed))
    for (line, share), group in groupby(ordered, key=lambda run: (run.line, run.share)):
        same = list(group)
        if any(run.rest != same[0].rest for run in same):
            raise UserError(f"runs of {line} with {100 * share:g} % of the epochs differ in more than their seeds")
        seeds = tuple(run.seed for run in same)
        if len(set(seeds)) < len(seeds):
            raise UserError(f"two runs of {line} with {100 * share:g} % of the epochs have the same seed")
        images, minutes = fmean(run.images for run in same) / 1e3, fmean(run.seconds for run in same) / 60
        points.append(Point(line, share, images, minutes, mean_of([run.avg for run in same]), seeds))
    return points


def table(points: Sequence[Point]) -> str:
    """The points as Markdown."""
    rows = ["| method, schedule | epochs | seeds | images, thousands | minutes | Avg |", "|---|---|---|---|---|---|"]
    for point in points:
        error = "" if point.avg.error is None else f" ±{point.avg.error:.2f}"
        rows.append(
            f"| {point.line} | {100 * point.share:g} % | {', '.join(map(str, point.seeds))} | "
            f"{point.images:.0f} | {point.minutes:.1f} | {point.avg.mean:.2f}{error} |"
        )
    return "\n".join(rows) + "\n"


def plots(points: Sequence[Point], title: str, minutes: str) -> Mapping[str, Plot]:
    """Avg against minutes and against images, by the names of their files."""
    return {
        "minutes": Plot(title, "", minutes, "Avg (%)", lines_of(points, "minutes")),
        "images": Plot(title, "", "images trained on, thousands", "Avg (%)", lines_of(points, "images")),
    }


def lines_of(points: Sequence[Point], across: str) -> dict[str, tuple[tuple[float, Mean], ...]]:
    """The points of each line, from the fewest epochs on."""
    return {
        line: tuple((getattr(point, across), point.avg) for point in group)
        for line, group in groupby(points, key=lambda point: point.line)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/budgets.py", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, help="where table.md and the plots go")
    parser.add_argument("--processor", action="store_true", help="minutes of the processor, from RUN.time")
    given = parser.parse_args(arguments)
    try:
        runs = [spent_by(directory, given.processor) for directory in given.runs]
        streams = sorted({run.stream for run in runs})
        if len(streams) > 1:
            raise UserError(f"runs of different streams do not compare: {'; '.join(streams)}")
        points = points_of(runs)
        write_bytes(given.out / "table.md", table(points).encode())
        for name, curves in plots(points, streams[0], "processor minutes" if given.processor else "minutes").items():
            plot_lines(curves, given.out / f"{name}.png")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(points), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
