"""Where a verb prints: people read a console, programs read JSON from standard output."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 160
"""Columns of tables that go to a file or a program, where there is no window to fit, unless COLUMNS says so."""


def console(stderr: bool = False) -> Console:
    """For people; on standard error when standard output is for JSON."""
    from rich.console import Console

    fits = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if fits else _PIPE_WIDTH)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def warn(sentence: str) -> None:
    print(f"drcil: warning: {sentence}", file=sys.stderr)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Within the block warnings to users of the library are told as the command line tells its own."""

    def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            warn(str(message))
        else:
            before(message, category, *where, **more)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.showwarning = tell
        yield
