"""``result.json``: the figures of a run, readable by people and programs."""

from __future__ import annotations

from typing import Any

from ..errors import unknown
from ..models.model import Model
from ..streams.stream import Stream
from .settings import RunSettings

_LEADING = ("curve", "avg", "last", "forgetting", "matrix", "top5", "parameters")
"""The figures of a readout that stand at the top level if it leads."""


def make_result(
    settings: RunSettings,
    stream: Stream,
    metrics: dict[str, dict[str, Any]],
    states: list[dict[str, Any]],
    model: Model,
    versions: dict[str, str],
) -> dict[str, Any]:
    """The result of the finished tasks, led by the readout that the settings name."""
    tasks = [state["task"] for state in states]
    figures = {
        name: {
            **own,
            "parameters": tasks[-1]["readouts"][name]["parameters"],
            "per_task": [task["readouts"][name] for task in tasks],
        }
        for name, own in metrics.items()
    }
    result = {
        "method": settings.method,
        "stream": settings.stream,
        "seed": settings.seed,
        "order_seed": settings.order_seed,
        "profile": settings.profile,
        "settings": {
            "memory": states[-1]["memory"]["budget"],
            "backbone": model.method.architecture.backbone,
            "image_size": states[-1]["images"]["size"],
            "epochs_scale": settings.epochs_scale,
            "augment": model.augmentation,
            "method": model.method.settings.model_dump(mode="json"),
        },
        "classes": states[-1]["classes"],
        "tasks": states[-1]["tasks"],
        "complete": len(states) == min(settings.tasks or len(stream), len(stream)),
        "readout": None,
        **dict.fromkeys(_LEADING),
        "readouts": figures,
        "seconds": round(sum(task["seconds"] for task in tasks), 3),
        "per_task": [{name: value for name, value in task.items() if name != "readouts"} for task in tasks],
        "versions": versions,
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
