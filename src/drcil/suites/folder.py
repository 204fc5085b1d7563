"""The directory of a comparison or of a suite of the paper's tables: what was asked, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk import leftovers, locked, make_directory, remove, write_json
from ..errors import UserError
from ..reading import read_json
from ..runs.begin import RUNS

LOGS, _LOCK = "logs", ".lock"


@dataclass(frozen=True)
class Folder:
    """A kind of directory: its question and answer are one JSON file, beside others that can be made again from it.

    A question is an object. It may grow: by more of its list, and by more seeds.
    """

    noun: str
    """What such a directory holds."""
    file: str
    listed: str
    """The list in the question: what is compared, what is reproduced."""
    others: tuple[str, ...]
    """The names of the other files."""

    def find_place(self, wanted: Path, question: dict[str, Any]) -> Path:
        """The directory of the same question, asked before; else one that is not taken: the name, or with a number."""
        place, number = wanted, 2
        while place.exists() and self._question(place) != question:
            place, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
        return place

    @contextmanager
    def opened(self, place: Path, question: dict[str, Any]) -> Iterator[None]:
        """Within the block the directory is this process's own; what is asked is written before there is an answer.

        An answer that is there stays until there is another. One to another question is not touched.
        """
        self._require_room(place, question)
        make_directory(place)
        with locked(place / _LOCK, f"{place} is in use by another {self.noun}; wait for it or stop it"):
            # Again: what another process has done here since is done.
            self._require_room(place, question)
            for file in leftovers(place):
                remove(file)
            if self._question(place) is None:
                write_json(place / self.file, {"question": question, self.listed: []})
            yield

    def _question(self, place: Path) -> dict[str, Any] | None:
        try:
            found = read_json(place / self.file)
        except UserError:
            return None
        asked = found.get("question") if isinstance(found, dict) else None
        if not isinstance(asked, dict) or type(asked.get("seeds")) is not int:
            return None
        listed = asked.get(self.listed)
        return asked if isinstance(listed, list) and all(isinstance(name, str) for name in listed) else None

    def _require_room(self, place: Path, question: dict[str, Any]) -> None:
        """A directory takes the answer if it holds nothing but runs, or an answer of which the new one has all.

        Where the question that was asked is lost or damaged, what is left of the answer is made again.
        """
        if not place.exists():
            return
        asked = self._question(place)
        if asked is None:
            ours: tuple[str | Path, ...] = (RUNS, LOGS, _LOCK)
            if os.path.lexists(place / _LOCK):
                ours += (self.file, *self.others)
            known = {*leftovers(place), *(place / name for name in ours)}
            if not place.is_dir() or set(place.iterdir()) - known:
                raise UserError(f"{place} exists and is not an empty directory; choose another --out")
        elif not self._covers(question, asked):
            listed = ", ".join(asked[self.listed])
            raise UserError(f"{place} holds another {self.noun}, of {listed}; choose another --out")

    def _covers(self, question: dict[str, Any], asked: dict[str, Any]) -> bool:
        """Whether one question asks all that another did: the same, perhaps with more of its list, or more seeds."""
        listed = self.listed
        if not set(asked[listed]) <= set(question[listed]) or asked["seeds"] > question["seeds"]:
            return False
        return {**asked, listed: question[listed], "seeds": question["seeds"]} == question
