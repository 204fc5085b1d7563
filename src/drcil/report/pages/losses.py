"""The losses of a run by stage, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .charts import LineChart, Series

_TOTAL = "total"
Epochs = dict[tuple[int, int], dict[str, float]]
"""Loss terms by task and epoch."""


def loss_charts(events: Iterable[Mapping[str, Any]]) -> list[LineChart]:
    """A chart for each stage: its terms over the epochs of all tasks, one task after the other."""
    return [_chart(stage, epochs) for stage, epochs in _by_stage(events).items()]


def _by_stage(events: Iterable[Mapping[str, Any]]) -> dict[str, Epochs]:
    """The terms of every epoch. What a resumed run trains again replaces what it was told of before."""
    stages: dict[str, Epochs] = {}
    for event in events:
        if event.get("event") == "StageStarted":
            own, task = stages.setdefault(event["stage"], {}), event["task"]
            for place in [place for place in own if place[0] == task and place[1] >= event["first_epoch"]]:
                del own[place]
        elif event.get("event") == "EpochDone":
            stages.setdefault(event["stage"], {})[event["task"], event["epoch"]] = event["losses"]
    return {stage: dict(sorted(epochs.items())) for stage, epochs in stages.items() if epochs}


def _chart(stage: str, epochs: Epochs) -> LineChart:
    terms = dict.fromkeys(term for losses in epochs.values() for term in losses)
    # A total of one term says the same twice.
    others = [term for term in terms if term != _TOTAL]
    names = others if len(others) == 1 else [_TOTAL, *others]
    places = [f"task {task}, epoch {epoch + 1}" for task, epoch in epochs]
    series = [Series(name, *_points(epochs, name), leads=name == _TOTAL or len(names) == 1) for name in names]
    return LineChart(f"epochs of stage '{stage}', task after task", "loss", tuple(series), places=tuple(places))


def _points(epochs: Epochs, term: str) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """A term's line, with a gap wherever a task ends."""
    across: list[float] = []
    along: list[float | None] = []
    before = None
    for number, ((task, _), losses) in enumerate(epochs.items(), start=1):
        if before not in (None, task):
            across.append(number - 0.5)
            along.append(None)
        across.append(number)
        along.append(float(f"{losses[term]:.4g}") if term in losses else None)
        before = task
    return tuple(across), tuple(along)
