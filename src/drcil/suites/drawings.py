"""The plots of a suite: accuracy after each task, a figure against a setting, images per class over the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..report.figures import TITLES, Shown
from ..report.gathered import task_curves
from ..report.measured import Curves, MeasuredCell
from ..report.outcomes import Figure, Outcome, captioned
from ..runs.plan import load_stream
from ..runs.settings import RunSettings
from ..streams.imbalance import task_images
from .datasets import Datasets
from .entries import Wanted

Keep = Callable[[str, RunSettings, str], bool]
"""Whether a line is kept, by its name, for a run and the method as it was named."""


class Found(Protocol):
    """What has become of runs."""

    @property
    def datasets(self) -> Datasets: ...

    def outcomes(self, wanted: Sequence[Wanted]) -> tuple[Outcome, ...]: ...


class Drawing(Protocol):
    """A plot, before anything is measured."""

    def __bool__(self) -> bool:
        """Whether there is anything to draw."""

    def wanted(self) -> Iterator[Wanted]: ...

    def looks_at(self) -> Iterator[RunSettings]:
        """Runs whose images are counted, though nothing is trained."""

    def narrowed(self, keep: Keep) -> Drawing:
        """With the lines that are kept."""

    def drawn(self, found: Found) -> Curves | None:
        """As far as runs are finished; None where none is."""


@dataclass(frozen=True)
class TaskCurves:
    """Accuracy after each task, against the classes seen."""

    name: str
    caption: str
    metric: str
    """The metric that the curve sums up to."""
    lines: Mapping[str, tuple[Wanted, ...]]
    highlight: str = ""
    """The line in question."""

    def __bool__(self) -> bool:
        return bool(self.lines)

    def wanted(self) -> Iterator[Wanted]:
        for runs in self.lines.values():
            yield from runs

    def looks_at(self) -> Iterator[RunSettings]:
        return iter(())

    def narrowed(self, keep: Keep) -> TaskCurves:
        kept = {name: runs for name, runs in self.lines.items() if keep(name, runs[0].settings, runs[0].method)}
        return replace(self, lines=kept)

    def drawn(self, found: Found) -> Curves | None:
        runs = {name: found.outcomes(wanted) for name, wanted in self.lines.items()}
        return task_curves(self.name, self.caption, Shown(self.metric), runs, self.highlight)


@dataclass(frozen=True)
class Sweep:
    """A metric against the values of a setting."""

    name: str
    caption: str
    setting: str
    metric: str
    lines: Mapping[str, tuple[tuple[float, tuple[Wanted, ...]], ...]]

    def __bool__(self) -> bool:
        return bool(self.lines)

    def wanted(self) -> Iterator[Wanted]:
        for points in self.lines.values():
            for _, runs in points:
                yield from runs

    def looks_at(self) -> Iterator[RunSettings]:
        return iter(())

    def narrowed(self, keep: Keep) -> Sweep:
        def kept(name: str, run: Wanted) -> bool:
            return keep(name, run.settings, run.method)

        return replace(self, lines={name: line for name, line in self.lines.items() if kept(name, line[0][1][0])})

    def drawn(self, found: Found) -> Curves | None:
        runs = {name: [(value, found.outcomes(own)) for value, own in line] for name, line in self.lines.items()}
        lines = {}
        for name, line in runs.items():
            measured = [(value, MeasuredCell(self.metric, own).measured) for value, own in line]
            points = tuple((value, own) for value, own in measured if own is not None)
            if points:
                lines[name] = points
        if not lines:
            return None
        along = f"{TITLES.get(self.metric, self.metric)} (%)"
        each = {f"{name}, {self.setting}={value:g}": own for name, line in runs.items() for value, own in line}
        behind = {name: tuple(one for _, own in line for one in own) for name, line in runs.items()}
        return Curves(self.name, captioned(self.caption, each), self.setting, along, lines, outcomes=behind)


@dataclass(frozen=True)
class Imbalance:
    """Images of a new and of an old class, task by task; nothing is trained."""

    name: str
    caption: str
    run: RunSettings
    """Whose stream and memory these are."""
    empty: bool = False

    def __bool__(self) -> bool:
        return not self.empty

    def wanted(self) -> Iterator[Wanted]:
        return iter(())

    def looks_at(self) -> Iterator[RunSettings]:
        yield self.run

    def narrowed(self, keep: Keep) -> Imbalance:
        return replace(self, empty=not keep("", self.run, ""))

    def drawn(self, found: Found) -> Curves | None:
        dataset = found.datasets.at_hand(self.run)
        if dataset is None:
            return None
        tasks = task_images(load_stream(self.run, dataset))[: self.run.tasks]
        lines = {
            "a new class": tuple((float(task.number), Figure(float(task.new.mean()), None)) for task in tasks),
            "an old class": tuple(
                (float(task.number), Figure(float(task.memory.mean()), None)) for task in tasks if len(task.memory)
            ),
        }
        return Curves(self.name, self.caption, "task", "training images of a class", lines, percent=False)
