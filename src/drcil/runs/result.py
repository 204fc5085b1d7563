"""``result.json``: the figures of a run, readable by people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def has_metrics(result: dict[str, Any]) -> bool:
    """Whether the result has all metrics that are known now."""
    return "metric" in result and all(set(METRICS) <= set(figures) for figures in result["readouts"].values())


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


def measured_by(result: dict[str, Any], metric: str | None) -> dict[str, Any]:
    """The same result, shown by this metric first (None: as it is)."""
    return result if metric is None else {**result, "metric": require_figure(metric)}
