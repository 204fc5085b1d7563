"""What the verbs of many runs share: finishing all of them, and showing how that goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ..errors import Interrupted
from ..report.board import board
from ..suites.carrying import carry_out, ensure_begun
from ..suites.datasets import Datasets
from ..suites.engines import Engine
from ..suites.entries import Entry


@contextmanager
def opened(engine: Engine, needed: bool, places: Sequence[Path]) -> Iterator[int]:
    """Within the block the engine is ready, if it is needed, for runs below these places; how many at a time."""
    try:
        yield engine.open(places) if needed else 1
    except KeyboardInterrupt:
        raise Interrupted("interrupted; run the same command again to continue") from None
    finally:
        if needed:
            engine.close()


def finish_runs(
    entries: Sequence[Entry],
    jobs: int,
    datasets: Datasets,
    logs: Path,
    screen: Console,
    quiet: bool,
    engine: Engine,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Finish all runs that are not finished; every entry then has a result or a failure.

    ``after`` is called whenever a run has come to its end.
    """
    with board(screen, quiet) as display:
        for entry in entries:
            if entry.result is not None:
                display.say(f"{entry.name}: reused from {entry.directory}")

        def begin(entry: Entry) -> None:
            ensure_begun(entry, datasets, display.say)

        carry_out(entries, jobs, begin, engine, logs, display, after)
