"""What is told of a run beside its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class About:
    """How a run was carried out, as far as it is known."""

    command: str = ""
    """That makes a run like it."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """As in ``environment.json``."""
    events: Sequence[Mapping[str, Any]] = ()
    """As in ``events.jsonl``."""

    @property
    def finished(self) -> str:
        """The day on which its last task was finished, in UTC; nothing where the events do not say."""
        times = [event["time"] for event in self.events if event.get("event") == "TaskDone"]
        return datetime.fromtimestamp(times[-1], UTC).strftime("%Y-%m-%d") if times else ""

    def brief(self) -> About:
        """Without the many events of training: for those who hold many runs at a time."""
        return replace(self, events=[event for event in self.events if event.get("event") == "TaskDone"][-1:])

    @property
    def commit(self) -> str:
        """The commit of drcil that it began with, in short."""
        return str(self.environment.get("commit") or "")[:10]
