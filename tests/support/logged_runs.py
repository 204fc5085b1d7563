"""Events of a small run, told to loggers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drcil.runs.run_files import log_event, records_of
from drcil.train.events import EpochDone, Event, StageStarted, TaskDone
from drcil.train.loggers import Logging


def started(task: int, stage: str, first_epoch: int = 0) -> Event:
    return StageStarted(task, stage, 3, first_epoch, 10)


def epoch(task: int, stage: str, number: int) -> Event:
    terms = {"classification": task + number / 10, "total": task + number / 5}
    return EpochDone(task, stage, number, 0.1, terms | ({"branch": 0.5} if task > 1 else {}), 1.0, None, "test")


def done(task: int) -> Event:
    return TaskDone(
        task, 2 * task, 9.5, {"classifier": {"last": 90.0 - task, "forgetting": None if task == 1 else 3.0}}
    )


def stage(task: int, name: str) -> list[Event]:
    return [started(task, name), *(epoch(task, name, number) for number in range(3))]


WHOLE = [*stage(1, "first"), done(1), *stage(2, "adaptation"), *stage(2, "fusion, then rest"), done(2)]


def tell(directory: Path, events: Sequence[Event], logger: str = "csv") -> None:
    """What a run tells its loggers, in a process of its own."""
    directory.mkdir(exist_ok=True)
    logging = Logging([logger], directory, lambda: records_of(directory))
    for event in events:
        logging(event)
        log_event(directory, event)
    logging.close()
