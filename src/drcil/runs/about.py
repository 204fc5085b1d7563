"""What the files of a run tell of how it was carried out, for its page."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..disk import write_bytes
from ..errors import UserError
from ..reading import read_json
from ..report.pages import About, run_page
from .begin import ENVIRONMENT
from .command import command_of
from .events import EVENTS, read_events
from .run import Run

PAGE = "report.html"


def about(run: Run) -> About:
    """As far as its files are there; what cannot be read is left out."""
    environment: Any = None
    with suppress(UserError):
        environment = read_json(run.directory / ENVIRONMENT)
    known = environment if isinstance(environment, dict) else {}
    return About(command_of(run.settings), known, read_events(run.directory / EVENTS))


def write_page(run: Run, result: dict[str, Any]) -> None:
    """Put the page of a run beside its result."""
    write_bytes(run.directory / PAGE, run_page(result, about(run)).encode())
