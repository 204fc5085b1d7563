"""The logger ``tensorboard``: event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..events import EpochDone, Record
from . import LOGGERS
from .scalars import own_directory, scalars


@LOGGERS.register("tensorboard")
class EventFiles:
    """Event files in tensorboard/. Epochs are counted through all tasks; results stand over the classes seen."""

    needs = "tensorboard"

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = own_directory(directory / "tensorboard")
        self._former = list(place.glob("events.out.tfevents.*"))
        # A TensorBoard that is open then forgets what it has read in the former files.
        self._writer = SummaryWriter(str(place), purge_step=0)
        self._epochs = 0

    def __call__(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, EpochDone):
                self._epochs += 1
            step = self._epochs if isinstance(record, EpochDone) else record.classes
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, step, walltime=record.time)
        self._writer.flush()
        while self._former:
            self._former.pop().unlink(missing_ok=True)

    def close(self) -> None:
        self._writer.close()
