"""What is shown of several runs at a time: lines for what is done, and what is under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Board:
    """Lines for what is done; on a terminal a live line for each run under way, elsewhere a line for each task."""

    def __init__(self, screen: Console, live: Live | None, quiet: bool) -> None:
        self._screen, self._live, self._quiet = screen, live, quiet

    def say(self, line: str) -> None:
        if not self._quiet:
            self._screen.print(line, markup=False, soft_wrap=True)

    def step(self, line: str) -> None:
        if self._live is None:
            self.say(line)

    def show(self, lines: Sequence[str]) -> None:
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))


@contextmanager
def board(screen: Console, quiet: bool) -> Iterator[Board]:
    """The board that fits the console."""
    if quiet or not screen.is_terminal:
        yield Board(screen, None, quiet)
        return
    with Live(console=screen, transient=True) as live:
        yield Board(screen, live, quiet)
