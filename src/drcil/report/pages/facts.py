"""What is told of a run in words: its settings, where and when it was carried out, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...recipes import dotted
from ..about import About
from ..progress import duration

Facts = list[tuple[str, str]]


def budget(result: Mapping[str, Any], tasks: int | None = None) -> str:
    """How much is spent on a run: profile, epochs, image size, tasks (None: those that are finished)."""
    own = result["settings"]
    words = [f"profile {result.get('profile', 'full')}"]
    scale = own.get("epochs_scale", 1.0)
    words += [] if scale == 1.0 else [f"{scale * 100:.4g} % of the epochs"]
    words += [f"schedule {own['schedule']}"] if own.get("schedule") else []
    words += [f"images of {own['image_size']} pixels"] if own.get("image_size") else []
    tasks = tasks or len(result["tasks"])
    return ", ".join([*words, f"{tasks} task{'' if tasks == 1 else 's'}"])


def facts(result: Mapping[str, Any], about: About) -> Facts:
    """Names and values, in the order in which they are asked for."""
    own, environment = result["settings"], about.environment
    versions = result.get("versions") or environment.get("versions") or {}
    found = {
        "command": about.command,
        "seed": f"{result['seed']}, class order {result['order_seed']}",
        "budget": budget(result),
        "memory": own["memory"],
        "backbone": own["backbone"],
        "augmentation": own.get("augment"),
        "duration": duration(result["seconds"]),
        "finished": about.finished,
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": about.commit,
        "machine": _machine(environment),
    }
    return [(name, str(value)) for name, value in found.items() if value]


def settings_of(result: Mapping[str, Any]) -> Facts:
    """The method's own settings, those of stages by dotted names."""
    return [(name, _worded(value)) for name, value in dotted(result["settings"].get("method", {}))]


def _machine(environment: Mapping[str, Any]) -> str:
    threads = environment.get("threads")
    parts = [
        environment.get("platform"),
        *environment.get("devices", ()),
        threads and f"{threads} CPU thread{'' if threads == 1 else 's'}",
    ]
    return ", ".join(str(part) for part in parts if part)


def _worded(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_worded, value)) or "none"
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
