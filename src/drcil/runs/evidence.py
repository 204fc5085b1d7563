"""What is kept of a run where the run itself is not: settings, figures, versions, machine and date, in a small file.

Runs are large and stay where they were made. Their evidence fits into a repository, and reports are made from either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..disk import write_bytes
from ..errors import UserError, legible
from ..reading import CHECKSUM, checksum, read_sealed
from ..report.about import About
from ..validation import explain
from .about import about
from .result import is_sound, led_by
from .run import Run
from .settings import RunSettings

_NEEDED = ("avg", "last", "forgetting", "curve", "matrix")
"""Metrics without which there is nothing to show. Evidence of before another became known stays evidence."""
_RESULT = (
    "method", "stream", "seed", "order_seed", "profile", "settings", "tasks", "complete", "metric", "readout",
    "seconds",
)  # fmt: skip
_PER_TASK = ("number", "new_images", "memory_images", "seconds", "learning_seconds")
_ENVIRONMENT = ("versions", "commit", "platform", "processor", "devices", "threads")
_ELSEWHERE = {"data", "loggers"}
"""Settings that only mean something where the run was made."""
_DEPTH = 3
"""Tables within tables that are written line by line."""


@dataclass(frozen=True)
class Evidence:
    """A run as reports need it, from its directory or from a file."""

    settings: RunSettings
    result: dict[str, Any]
    about: About
    place: str
    """Where it was read."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    evidence: Literal[1]
    settings: RunSettings
    command: str
    finished: float | None
    environment: dict[str, Any]
    result: dict[str, Any]


def evidence_of(run: Run) -> Evidence:
    """Of a run in its directory, finished or not; an error where no task is finished."""
    return Evidence(run.settings, run.result(), about(run).brief(), legible(str(run.directory)))


def write_evidence(own: Evidence, directory: Path) -> Path:
    """Keep a finished run in a directory; what was kept of one with the same settings is replaced. Where it is."""
    if not own.result["complete"]:
        raise UserError(f"{own.place} is not finished, so there is no evidence to store")
    settings = own.settings.model_dump(mode="json", exclude_none=True, exclude=_ELSEWHERE)
    entries = {
        "evidence": 1,
        "settings": settings,
        "command": own.about.command,
        "finished": own.about.events[-1]["time"] if own.about.events else None,
        "environment": {name: own.about.environment.get(name) for name in _ENVIRONMENT},
        "result": _trimmed(own.result),
    }
    same = checksum({**own.settings.choices(), "tasks": own.settings.tasks})
    path = directory / f"{own.settings.name}-{same[:8]}.json"
    write_bytes(path, (_lines({**entries, CHECKSUM: checksum(entries)}) + "\n").encode())
    return path


def read_evidence(path: Path) -> Evidence:
    """What a file has kept."""
    try:
        kept = _Stored.model_validate(read_sealed(path))
        result = led_by({**kept.result, "readout": None}, kept.result["readout"])
    except ValidationError as error:
        raise UserError(f"{path} is not the evidence of a run: {explain(error)}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is not the evidence of a run: its result is not whole") from None
    if not is_sound(result, _NEEDED):
        raise UserError(f"{path} is not the evidence of a run: its result is not whole")
    events = [] if kept.finished is None else [{"event": "TaskDone", "time": kept.finished}]
    return Evidence(kept.settings, result, About(kept.command, kept.environment, events), legible(str(path)))


def _trimmed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part that reports show, with as many decimals as they could."""
    readouts = {
        readout: {name: _rounded(value) for name, value in figures.items() if name != "exact"}
        for readout, figures in result["readouts"].items()
    }
    tasks = [{name: task[name] for name in _PER_TASK if name in task} for task in result["per_task"]]
    return {**{name: result[name] for name in _RESULT}, "readouts": readouts, "per_task": tasks}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def _lines(value: Any, depth: int = 0) -> str:
    """JSON with a line for each entry of the outer tables, so that a change is a line."""
    if not isinstance(value, dict) or depth == _DEPTH or not value:
        return json.dumps(value, allow_nan=False)
    inner = ",\n".join(
        f"{' ' * (depth + 1)}{json.dumps(name)}: {_lines(own, depth + 1)}" for name, own in value.items()
    )
    return f"{{\n{inner}\n{' ' * depth}}}"
