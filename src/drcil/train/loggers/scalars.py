"""Records as named numbers, for programs that draw one curve for each name; and a directory of a logger's own."""

from __future__ import annotations

from pathlib import Path

from ...disk import make_directory
from ...errors import UserError
from ..events import EpochDone, Record


def scalars(record: Record) -> dict[str, float]:
    """``fusion/loss_total`` of an epoch, ``tasks/classifier/last`` of a task; what precedes the slash is a group."""
    if isinstance(record, EpochDone):
        numbers = {f"loss_{term}": loss for term, loss in record.losses.items()}
        numbers |= {"rate": record.lr, "seconds": record.seconds}
        if record.accuracy is not None:
            numbers["accuracy"] = record.accuracy
        return {f"{record.stage}/{name}": value for name, value in numbers.items()}
    figures = {
        f"tasks/{readout}/{name}": value
        for readout, own in record.figures.items()
        for name, value in own.items()
        if value is not None
    }
    return {**figures, "tasks/seconds": record.seconds}


def own_directory(place: Path) -> Path:
    """The directory, made if it is not there; never one that a link leads to."""
    if place.is_symlink():
        raise UserError(f"{place} is a link; a run is written in its own directory only")
    make_directory(place)
    return place
