"""``result.json``: the figures of a run, readable by people and programs."""

from __future__ import annotations

from typing import Any

from ..methods import Method
from ..streams.stream import Stream
from .settings import RunSettings


def make_result(
    settings: RunSettings,
    stream: Stream,
    metrics: dict[str, dict[str, Any]],
    states: list[dict[str, Any]],
    method: Method,
    versions: dict[str, str],
) -> dict[str, Any]:
    """The result of the finished tasks; the top-level figures are the primary readout's."""
    primary = next(iter(metrics))
    first = metrics[primary]
    tasks = [
        {**state["task"], "accuracy": accuracy, "top5": top5, "per_task": row}
        for state, accuracy, top5, row in zip(states, first["curve"], first["top5"], first["matrix"], strict=True)
    ]
    return {
        "method": settings.method,
        "stream": settings.stream,
        "seed": settings.seed,
        "order_seed": settings.order_seed,
        "profile": settings.profile,
        "settings": {
            "memory": states[-1]["memory"]["budget"],
            "backbone": method.architecture.backbone,
            "image_size": states[-1]["images"]["size"],
            "epochs_scale": settings.epochs_scale,
            "augment": settings.augment or stream.dataset.spec.augment,
            "method": method.settings.model_dump(mode="json"),
        },
        "classes": states[-1]["classes"],
        "tasks": states[-1]["tasks"],
        "complete": len(states) == min(settings.tasks or len(stream), len(stream)),
        "readout": primary,
        **{name: first[name] for name in ("curve", "avg", "last", "forgetting", "matrix", "top5")},
        "readouts": metrics,
        "parameters": method.parameters(),
        "seconds": round(sum(task["seconds"] for task in tasks), 3),
        "per_task": tasks,
        "versions": versions,
    }
