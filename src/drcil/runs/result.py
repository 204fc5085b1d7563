"""``result.json``: the figures of a run, readable by people and programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import unknown
from ..metrics import METRICS, require_figure
from ..streams.protocols import parse_stream
from .record import FinishedTask
from .settings import RunSettings

MADE_FROM = "made_from"
"""The entry of the file that says which tasks and settings the figures are of."""

_LEADING = ("curve", "avg", "last", "forgetting", "matrix", "top5", "parameters")
"""The figures of a readout that stand at the top level if it leads."""


def leading_metric(stream: str) -> str:
    """The metric by which methods are compared on a stream, unless another is asked for."""
    return "avg" if parse_stream(stream).tail is None else "task_avg"


class _Measured(BaseModel):
    """What tables and plots take from a result; it may say more."""

    tasks: list[int]
    curve: list[float]
    avg: float
    last: float
    forgetting: float | None
    top5: list[float]
    matrix: list[list[float]]
    parameters: float
    per_task: list[dict[str, Any]]


class _Task(BaseModel):
    seconds: float


class _Settings(BaseModel):
    memory: str
    backbone: str


class _Result(_Measured):
    method: str
    stream: str
    seed: int
    order_seed: int
    settings: _Settings
    complete: bool
    metric: str
    readout: str
    readouts: dict[str, dict[str, Any]]
    seconds: float


def is_sound(result: dict[str, Any], metrics: Collection[str] | None = None) -> bool:
    """Whether a result that was kept has all that is shown of it, and these metrics (None: all that are known now)."""
    wanted = set(METRICS) if metrics is None else set(metrics)
    try:
        found = _Result.model_validate(result)
        leads = found.readouts[found.readout]
        for figures in found.readouts.values():
            own = _Measured.model_validate({**figures, "tasks": found.tasks})
            lengths = {len(own.curve), len(own.matrix), len(own.per_task), len(found.per_task), len(found.curve)}
            if lengths != {len(found.tasks)} or not wanted <= set(figures):
                return False
        for task in found.per_task:
            _Task.model_validate(task)
    except (ValidationError, KeyError):
        return False
    return all(result[name] == leads[name] for name in _LEADING)


def make_result(
    settings: RunSettings, tasks: Sequence[FinishedTask], metrics: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The result of the finished tasks, led by the readout that the settings name."""
    model, record = tasks[-1].model, tasks[-1].record
    own = [task.record.task.model_dump(mode="json") for task in tasks]
    figures = {
        name: {
            **measured,
            "parameters": own[-1]["readouts"][name]["parameters"],
            "per_task": [task["readouts"][name] for task in own],
        }
        for name, measured in metrics.items()
    }
    result = {
        "method": settings.method,
        "stream": settings.stream,
        "seed": settings.seed,
        "order_seed": settings.order_seed,
        "profile": settings.profile,
        "settings": {
            "memory": model.memory.budget,
            "backbone": model.architecture.backbone,
            "image_size": model.images.size,
            "epochs_scale": settings.epochs_scale,
            **({} if settings.schedule is None else {"schedule": settings.schedule}),
            "augment": model.augment or model.settings.get("augment") or model.data.augment,
            "method": model.settings,
        },
        "classes": list(model.classes),
        "tasks": list(model.tasks),
        "complete": len(tasks) >= min(settings.tasks or record.stream_tasks, record.stream_tasks),
        "metric": leading_metric(settings.stream),
        "readout": None,
        **dict.fromkeys(_LEADING),
        "readouts": figures,
        "seconds": round(sum(task["seconds"] for task in own), 3),
        "per_task": [{name: value for name, value in task.items() if name != "readouts"} for task in own],
        "versions": record.versions,
    }
    return led_by(result, settings.readout)


def led_by(result: dict[str, Any], readout: str | None) -> dict[str, Any]:
    """The same result with the figures of this readout (None: the method's own choice) at its top level."""
    known = result["readouts"]
    leading = readout or next(iter(known))
    if leading == result["readout"]:
        return result
    if leading not in known:
        raise unknown(f"readout of '{result['method']}'", leading, known)
    own = known[leading]
    measured = zip(own["curve"], own["top5"], own["matrix"], own["per_task"], result["per_task"], strict=True)
    return {
        **result,
        "readout": leading,
        **{name: own[name] for name in _LEADING},
        "per_task": [
            {**task, "accuracy": accuracy, "top5": top5, "per_task": row, **extra}
            for accuracy, top5, row, extra, task in measured
        ],
    }


def figures_so_far(result: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """By readout, what can be followed from task to task: all figures that are one number."""
    return {
        readout: {
            name: value
            for name, value in {**figures, **figures["per_task"][-1]}.items()
            if value is None or isinstance(value, int | float)
        }
        for readout, figures in result["readouts"].items()
    }


def measured_by(result: dict[str, Any], metric: str | None) -> dict[str, Any]:
    """The same result, shown by this metric first (None: as it is)."""
    return result if metric is None else {**result, "metric": require_figure(metric)}
