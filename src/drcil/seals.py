"""Seals of large files: a checksum that costs little more than reading.

A file is taken as a table of 64-bit words, 509 in a row; what is hashed (SHA-256) are the sums of its columns modulo
2^64, for every 512 rows. A change of any one word is noticed for certain. So are pieces that changed places: nothing
that a disk writes at once is as long as a row, so that words come into other columns. Hashing all bytes instead would
take six to ten times as long: for ResNet-18, a seventh to a third of loading the model.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from .errors import UserError
from .reading import file_size, unreadable

_WORD, _COLUMNS = np.dtype("<u8"), 509
_ROW = _COLUMNS * _WORD.itemsize
_BLOCK = 512 * _ROW


@dataclass(frozen=True)
class Seal:
    """What is known of a file when it is written, to be compared when it is read: its bytes and their checksum."""

    size: Annotated[int, Field(ge=0)]
    checksum: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, content: bytes) -> Seal:
        return cls(len(content), _checksum(content))

    @classmethod
    def of_file(cls, path: Path) -> Seal:
        return cls(file_size(path), _checksum_of(path))


def require_unchanged(path: Path, seal: Seal) -> None:
    """The file must be the one that was sealed."""
    found = file_size(path)
    if found != seal.size:
        raise UserError(f"{path} is damaged: it has {found} bytes, but {seal.size} were written; restore it")
    if _checksum_of(path) != seal.checksum:
        raise UserError(f"{path} is damaged: its checksum is not that of the file that was written; restore it")


def _checksum_of(path: Path) -> str:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _checksum(content)
    except (OSError, ValueError) as error:  # A file of no bytes cannot be mapped.
        raise unreadable(path, error) from error


def _checksum(content: bytes | mmap.mmap) -> str:
    digest = hashlib.sha256()
    octets = np.frombuffer(content, dtype=np.uint8)
    for start in range(0, len(octets), _BLOCK):
        block = octets[start : start + _BLOCK]
        missing = -len(block) % _ROW
        table = (np.pad(block, (0, missing)) if missing else block).view(_WORD).reshape(-1, _COLUMNS)
        digest.update(table.sum(axis=0, dtype=_WORD).tobytes())
    return digest.hexdigest()
