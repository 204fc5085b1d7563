"""Files from a tar archive that may be anything: by name, regular ones only, and never more than they may be."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, cast

from ...reading import open_file

BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError, RecursionError)
"""What reading an archive that is damaged, or not as it should be, raises."""

_ARCHIVE_LIMIT = 2**40


def members(archive: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, IO[bytes]]]:
    """The named members, each to be read before the next; a name's limit is how many bytes it may have.

    No other member is looked at, so it does not matter where its name would lead. What is read in all is bounded too,
    before a false size or a file of nothing but zeros could fill the memory.
    """
    missing = dict(limits)
    with open_file(archive, _ARCHIVE_LIMIT) as file:
        bounded = _Bounded(_decompressed(file), sum(limits.values()) + 2**20)
        with tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r|", bufsize=2**16) as tar:
            while missing and (member := tar.next()) is not None:
                if (
                    not 0 <= member.size <= bounded.left
                ):  # It would be skipped block by block, whether it is there or not.
                    raise tarfile.ReadError(f"{member.name} in it has {member.size} bytes, which is too many")
                if member.name not in missing:
                    continue
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise tarfile.ReadError(f"{member.name} in it is not a file")
                if member.size > missing.pop(member.name):
                    raise tarfile.ReadError(f"{member.name} in it has {member.size} bytes, which is too many")
                yield member.name, stream
    if missing:
        raise tarfile.ReadError(f"{next(iter(missing))} is not in it")


def _decompressed(file: BinaryIO) -> IO[bytes]:
    magic = file.read(2)
    file.seek(0)
    if magic == b"\x1f\x8b":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic == b"BZ":
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if magic == b"\xfd7" else file


class _Bounded:
    """A stream that refuses to give more than so many bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self.left = stream, limit

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise tarfile.ReadError("there is far more in it than there should be")
        return block
