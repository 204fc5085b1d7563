"""Pictures in a directory of one's own, each named by its content: copies that do not depend on the originals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...disk import share_file, write_bytes
from .decode import whole
from .description import Kept
from .digests import LENGTH
from .encode import ROOM, smaller_jpeg
from .filelist import FileList
from .files import EncodedSource, FileSource
from .opening import FILE_LIMIT

_LARGE = 256 * 2**10
"""Bytes of a picture that is kept as it is. Larger ones are kept smaller, where that does not cost what is seen."""
_SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}


class KeptSource(FileSource):
    """The pictures of these names in a directory. Two of the same names hold the same pictures, wherever they are."""

    def __init__(self, directory: Path, files: Sequence[str], size: int, resize: int | None, channels: int) -> None:
        super().__init__(FileList.of(directory, [("", files)]), size, resize, channels)
        self._names = tuple(files)

    def describe(self) -> dict[str, Any]:
        view = {"size": self.size, "resize": self.resize, "channels": self.channels}
        return {"kind": "kept", **view, "files": list(self._names)}

    @classmethod
    def in_directory(cls, directory: Path, description: Kept) -> KeptSource:
        return cls(directory, description.files, description.size, description.resize, description.channels)


def keep_picture(source: EncodedSource, row: int, directory: Path) -> str:
    """Copy a picture into the directory, and say its name there.

    One that is kept already is shared, not copied, where the disk can do that.
    """
    if isinstance(source, KeptSource):
        kept = Path(source.files.path(row))
        share_file(kept, directory, FILE_LIMIT)
        return kept.name
    with source.picture(row) as picture:
        suffix = _SUFFIXES.get(picture.format or "")
        content = source.content(row) if suffix else b""
        if not suffix or len(content) > _LARGE:
            suffix, content = "jpg", smaller_jpeg(whole(picture, source.mode), ROOM * source.size)
    name = f"{hashlib.sha256(content).digest()[:LENGTH].hex()}.{suffix}"
    if not os.path.exists(directory / name):
        write_bytes(directory / name, content)
    return name
