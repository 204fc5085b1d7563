"""The listener ``csv``: the losses of a run as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from ...disk import append_line, write_bytes
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
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        stage = [str(event.task), event.stage]
        kept = takewhile(lambda row: row[:2] != stage or int(row[2]) < event.first_epoch, csv.reader(whole))
        write_bytes(self.path, f"{_text(kept) or _text([HEADER])}\n".encode())


def _text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines, the last one not ended."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")
