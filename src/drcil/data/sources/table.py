"""Pictures in a table on disk, as Hugging Face's ``datasets`` keeps them: each the content of a file, or its path."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...errors import UserError
from ...reading import read_bytes
from .decode import Picture
from .files import EncodedSource
from .opening import FILE_LIMIT, open_picture, picture_in, quickly, read_picture

_LOOKED_AT = 64
"""Pictures by which the size of all is estimated."""


class TableSource(EncodedSource):
    """The pictures of one column, opened when they are read. The table stays on disk."""

    def __init__(self, table: Any, column: str, dataset: str, split: str, size: int) -> None:
        """``table``: of ``datasets``, with this column not decoded. ``dataset`` and ``split`` lead back to it."""
        super().__init__(size)
        self.table, self.column, self.dataset, self.split = table, column, dataset, split

    def __len__(self) -> int:
        return len(self.table)

    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        content, path = self._stored(row)
        return open_picture(path) if content is None else picture_in(content)

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        content, path = self._stored(row)
        return quickly(read_picture(path) if content is None else content)

    def name(self, row: int) -> str:
        return f"row {row} of {self.dataset}, {self.split}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "dataset", "name": self.dataset, "split": self.split, "size": self.size}

    def digest(self, row: int) -> bytes:
        return hashlib.sha256(self.content(row)).digest()

    def stored_bytes(self) -> int:
        rows = np.unique(np.linspace(0, len(self) - 1, _LOOKED_AT, dtype=np.int64)).tolist()
        return -(-sum(len(self.content(row)) for row in rows) // len(rows))

    def content(self, row: int) -> bytes:
        try:
            content, path = self._stored(row)
        except ValueError as error:
            raise UserError(f"{self.name(row)} cannot be read as an image ({error})") from None
        return read_bytes(Path(path), FILE_LIMIT) if content is None else content

    def _stored(self, row: int) -> tuple[bytes | None, str]:
        """The content of a picture's file, or else its path on this machine. Nothing is fetched from a network."""
        entry = self.table[row][self.column]
        if not isinstance(entry, dict) or not (entry["bytes"] or entry["path"]):
            raise ValueError("there is none")
        return entry["bytes"] or None, entry["path"] or ""
