"""The logger ``csv``: the epochs and the results of a run as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...disk import append_line, write_bytes
from ..events import EpochDone, Record, TaskDone
from . import LOGGERS

EPOCHS, TASKS = "epochs.csv", "tasks.csv"


@LOGGERS.register("csv")
class Tables:
    """Two tables: epochs.csv with a row for every epoch, tasks.csv with one for every task and readout."""

    def __init__(self, directory: Path) -> None:
        self._epochs = _Table(directory / EPOCHS, "task", "stage", "epoch", "rate", "seconds", "accuracy")
        self._tasks = _Table(directory / TASKS, "task", "readout", "classes", "seconds")

    def __call__(self, records: Sequence[Record]) -> None:
        self._epochs.add([_epoch(record) for record in records if isinstance(record, EpochDone)])
        self._tasks.add([row for record in records if isinstance(record, TaskDone) for row in _results(record)])


def _epoch(done: EpochDone) -> dict[str, Any]:
    """Epochs count from 1, as they are shown while a run trains."""
    return {
        **{f"loss_{term}": loss for term, loss in done.losses.items()},
        "task": done.task,
        "stage": done.stage,
        "epoch": done.epoch + 1,
        "rate": done.lr,
        "seconds": round(done.seconds, 3),
        "accuracy": done.accuracy,
    }


def _results(done: TaskDone) -> list[dict[str, Any]]:
    own = {"task": done.task, "classes": done.classes, "seconds": done.seconds}
    return [{**figures, **own, "readout": readout} for readout, figures in done.figures.items()]


class _Table:
    """A file of rows. Stages have different losses: where a row has a new one, the table gets another column."""

    def __init__(self, path: Path, *columns: str) -> None:
        self._path, self._columns = path, list(columns)
        self._rows: list[Mapping[str, Any]] = []
        self._written = False

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows += rows
        more = list(dict.fromkeys(name for row in rows for name in row if name not in self._columns))
        if more or not self._written:
            self._columns += more
            text = _text([self._columns, *map(self._values, self._rows)])
            write_bytes(self._path, f"{text}\n".encode())
            self._written = True
        elif rows:
            append_line(self._path, _text(map(self._values, rows)))

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        return [row.get(column) for column in self._columns]


def _text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines, the last one not ended."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")
