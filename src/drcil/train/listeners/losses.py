"""The listener ``csv``: the losses of a run as a table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from ...disk import append_line, write_bytes
from ...reading import read_bytes
from ..events import EpochDone, Event, StageStarted
from . import LISTENERS

HEADER = ("task", "stage", "epoch", "lr", "term", "loss")


@LISTENERS.register("csv")
class LossTable:
    """Every loss term of every epoch, in losses.csv.

    The rows of epochs that a resumed run trains again are dropped first, so that it ends with the same table as one
    that was never stopped.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "losses.csv"

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._begin(event)
        elif isinstance(event, EpochDone):
            place = (event.task, event.stage, event.epoch, event.lr)
            append_line(self.path, _text([(*place, term, loss) for term, loss in event.losses.items()]))

    def _begin(self, event: StageStarted) -> None:
        """Cut the table off where training goes on. A line that a kill cut short is of an epoch from there on."""
        text = read_bytes(self.path).decode(errors="replace") if os.path.lexists(self.path) else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        stage = [str(event.task), event.stage]
        epochs = [str(epoch) for epoch in range(event.first_epoch)]
        # A row that is not of this table is where it was damaged, and no epoch before either.
        kept = takewhile(
            lambda row: len(row) == len(HEADER) and (row[:2] != stage or row[2] in epochs), csv.reader(whole)
        )
        write_bytes(self.path, f"{_text(kept) or _text([HEADER])}\n".encode())


def _text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines, the last one not ended."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")
