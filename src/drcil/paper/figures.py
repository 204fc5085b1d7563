"""The paper's figures: which runs they show, and how."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

from ..errors import unknown
from .asked import Asked, asked_of, swept
from .tables import PaperTable, published, published_table


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: counts of images, curves of a table's rows, or settings that are swept."""

    name: str
    caption: str
    table: str = ""
    """Whose rows are drawn."""
    imbalance: tuple[str, ...] = ()
    """Streams whose images are counted."""
    curves: tuple[str, ...] = ()
    """Streams on which accuracy is drawn after each task."""
    row: str = ""
    """The one that it is about: highlighted, or swept."""
    stream: str = ""
    sweep: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The values of each setting that is swept, for the row on the stream."""

    def lines(self, stream: str) -> dict[str, Asked]:
        """The rows that are drawn on a stream, and their runs."""
        cells = published_table(self.table).cells.values()
        drawn = (cell for cell in cells if cell.column.stream == stream and cell.value is not None)
        return {cell.row: asked_of(cell)[0] for cell in drawn}

    def points(self, setting: str) -> dict[float, Asked]:
        """The values of a setting, and their runs."""
        base = self.lines(self.stream)[self.row]
        return {value: swept(base, setting, value) for value in self.sweep[setting]}

    def runs(self) -> Iterator[Asked]:
        """All runs of the figure."""
        for stream in self.curves:
            yield from self.lines(stream).values()
        for setting in self.sweep:
            yield from self.points(setting).values()


@functools.cache
def figures() -> Mapping[str, PaperFigure]:
    """All figures by name."""
    about = tomllib.loads((resources.files(__package__) / "figures.toml").read_text())
    return {
        name: PaperFigure(
            **{
                "name": name,
                **words,
                "imbalance": tuple(words.get("imbalance", ())),
                "curves": tuple(words.get("curves", ())),
                "sweep": {setting: tuple(values) for setting, values in words.get("sweep", {}).items()},
            }
        )
        for name, words in about.items()
    }


def published_item(name: str) -> PaperTable | PaperFigure:
    """A table or a figure by its name, such as ``T2`` or ``F6``; capitals do not matter."""
    known: dict[str, PaperTable | PaperFigure] = {**published(), **figures()}
    if name.upper() not in known:
        raise unknown("table or figure", name, known)
    return known[name.upper()]
