"""Images that clients gave to learn from, in a private directory, under names of the server's own making.

Nothing that a client says becomes part of a path: its names of files are dropped, and its names of classes are cells of
a table.
"""

from __future__ import annotations

import asyncio
import csv
import io
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .decoding import Picture

TABLE = "labels.csv"
"""The table of an archive: 'drcil learn' takes it."""


class Item(NamedTuple):
    """An image with the class that it shows, as a client says."""

    file: str
    label: str


class Collection:
    """Corrected images, and those of a lesson until it is over."""

    def __init__(self) -> None:
        # For this user alone; it goes with the server.
        self._temporary = tempfile.TemporaryDirectory(prefix="drcil-serve-")
        self._directory = Path(self._temporary.name)
        self._given = 0
        self.corrected: list[Item] = []

    def add(self, picture: Picture, label: str) -> Item:
        """Keep a picture."""
        self._given += 1
        item = Item(f"{self._given:08d}.{picture.suffix}", label)
        (self._directory / item.file).write_bytes(picture.content)
        return item

    def remove(self, items: Iterable[Item]) -> None:
        gone = set(items)
        self.corrected = [item for item in self.corrected if item not in gone]
        for item in gone:
            (self._directory / item.file).unlink(missing_ok=True)

    def table(self, items: Sequence[Item]) -> Path:
        """A CSV of these, for a lesson."""
        self._given += 1
        path = self._directory / f"{self._given:08d}.csv"
        path.write_text(_table(items), encoding="utf-8")
        return path

    async def archive(self) -> bytes:
        """All corrected images with their table, as a ZIP. It is made in a thread: others are answered meanwhile."""
        return await asyncio.to_thread(self._packed, list(self.corrected))

    def _packed(self, items: Sequence[Item]) -> bytes:
        packed, there = io.BytesIO(), []
        with zipfile.ZipFile(packed, "w") as file:
            for item in items:
                with suppress(FileNotFoundError):  # It was deleted, or learnt, just now.
                    file.write(self._directory / item.file, item.file)
                    there.append(item)
            file.writestr(TABLE, _table(there))
        return packed.getvalue()

    def close(self) -> None:
        self._temporary.cleanup()


def _table(items: Iterable[Item]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label"])
    writer.writerows(items)
    return text.getvalue()
