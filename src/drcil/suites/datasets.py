"""The datasets that many runs share: each is loaded once, and one that is not there is asked for once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..data.datasets.dataset import Dataset
from ..data.datasets.load import load_dataset
from ..data.identity import DataIdentity, data_identity
from ..errors import UserError
from ..runs.settings import RunSettings
from ..streams.protocols import parse_stream

Place = tuple[str, str | None, int | None]
"""Name, data directory and image size: what a dataset is loaded by."""


class Datasets:
    """The datasets of runs, or the sentence that says why one cannot be had."""

    def __init__(self, told: Callable[[Dataset], None] = lambda dataset: None) -> None:
        """``told`` hears of each dataset as it is loaded."""
        self._told = told
        self._loaded: dict[Place, Dataset | UserError] = {}
        self._identities: dict[Place, DataIdentity] = {}

    def of(self, run: RunSettings) -> Dataset:
        """The dataset that a run learns from; or the error."""
        found = self._found(_place(run))
        if isinstance(found, UserError):
            raise found
        return found

    def at_hand(self, run: RunSettings) -> Dataset | None:
        """The same; None where it cannot be had: what was learnt from it can still be read."""
        found = self._found(_place(run))
        return None if isinstance(found, UserError) else found

    def missing(self, run: RunSettings) -> str | None:
        """Why a run's dataset cannot be had; None if it can."""
        found = self._found(_place(run))
        return str(found) if isinstance(found, UserError) else None

    def identity(self, run: RunSettings) -> DataIdentity | None:
        """What the dataset of a run consists of now; None where it cannot be had."""
        place, found = _place(run), self.at_hand(run)
        if found is not None and place not in self._identities:
            self._identities[place] = data_identity(found)
        return self._identities.get(place)

    def _found(self, place: Place) -> Dataset | UserError:
        if place not in self._loaded:
            name, data, size = place
            try:
                dataset = load_dataset(name, Path(data) if data else None, size)
                self._told(dataset)
                self._loaded[place] = dataset
            except UserError as error:
                self._loaded[place] = error
        return self._loaded[place]


def _place(run: RunSettings) -> Place:
    return parse_stream(run.stream).dataset, run.data, run.image_size
