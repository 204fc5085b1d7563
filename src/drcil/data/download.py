"""Downloads an archive, verifies it and extracts the files needed."""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ..errors import UserError
from ..files import open_regular, unreadable
from .dataset import Archive, LibraryDownload, ManualDownload, find_dataset

Progress = Callable[[int, int | None], None]
"""(bytes so far, bytes in all if known)"""

_BLOCK = 1 << 20
_TIMEOUT = 30
"""Seconds without a byte before a connection counts as dead."""
_LARGEST_ARCHIVE = 2**33
"""Bytes. A larger file is refused instead of hashed."""
_PART_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_PART_FLAGS |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def fetch(name: str, data_dir: Path, url: str | None = None, progress: Progress | None = None) -> Path:
    """Make a dataset present in the data directory, and return the folder with its files.

    Valid files are left alone. ``url``: another address of the same archive.
    """
    entry, argument = find_dataset(name)
    home = entry.download
    if isinstance(home, LibraryDownload):
        return home.fetch(*argument)
    if isinstance(home, ManualDownload):
        raise UserError(f"{name} cannot be fetched: {home.reason}")
    with _disk_errors(data_dir):
        if not all(_md5(data_dir / file) == md5 for file, md5 in home.files.items()):
            archive = data_dir / Path(urlsplit(home.url).path).name
            is_present = _md5(archive) == home.md5
            if not is_present:
                download(url or home.url, archive, home.md5, progress)
            _extract(archive, data_dir, home)
            if not is_present:
                archive.unlink()
    return data_dir / Path(os.path.commonpath([str(Path(file).parent) for file in home.files]))


def download(url: str, target: Path, md5: str, progress: Progress | None = None) -> None:
    """Download to ``target.part``, which becomes ``target`` once its md5 is verified."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"'{url}' is not an address to download from; it must begin with http:// or https://")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        response = urlopen(url, timeout=_TIMEOUT)
    except HTTPError as error:
        raise UserError(f"{url} cannot be downloaded: the server answered {error.code} {error.reason}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise UserError(f"{url} cannot be reached ({reason}); is this machine online?") from None
    with response, _replacing(target) as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        for block in _blocks(response):
            file.write(block)
            if progress is not None:
                progress(file.tell(), total)
        if total is not None and file.tell() < total:
            raise UserError(f"the connection to {url} broke after {file.tell()} of {total} bytes; try again")
        file.flush()
        actual = _md5(_part(target))
        if actual != md5:
            raise UserError(
                f"the file from {url} is not the expected one (md5 {actual}, expected {md5}); it was deleted"
            )


def read_members(archive: Path, md5: str, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The named members of a tar file with this md5; each must be read before the next."""
    try:
        actual = _md5(archive)
    except OSError as error:
        raise unreadable(archive, error) from None
    if actual != md5:
        raise UserError(
            f"{archive} is not the original archive (md5 {actual}, expected {md5}); unpack it, or delete it and run "
            "'drcil data fetch'"
        )
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                stream = tar.extractfile(name)
                if stream is None:
                    raise tarfile.ReadError(f"{name} in it is not a file")
                yield name, stream
    except (tarfile.TarError, EOFError, zlib.error, KeyError) as error:
        raise UserError(f"{archive} cannot be unpacked: {error}") from None


def _blocks(response: IO[bytes]) -> Iterator[bytes]:
    """What the server sends. A broken connection is an early end, which the caller notices by the length."""
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, HTTPException):
            return
        if not block:
            return
        yield block


def _extract(archive: Path, folder: Path, home: Archive) -> None:
    """Extract the files of a dataset, each completely or not at all; no other member is touched."""
    for name, stream in read_members(archive, home.md5, home.files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with _replacing(folder / name) as file:
            while block := stream.read(_BLOCK):
                file.write(block)


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file ``target.part`` to write to, which becomes ``target`` at the end, and is deleted if the block fails.

    A link in its place is not followed, and a named pipe not waited for.
    """
    part = _part(target)
    file = os.fdopen(os.open(part, _PART_FLAGS, 0o666), "wb")
    try:
        with file:
            yield file
        os.replace(part, target)
    except BaseException:
        part.unlink()
        raise


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Turn disk errors within the block into one sentence. Network errors are reported where they arise."""
    try:
        yield
    except OSError as error:
        # Some errors, such as that of a full disk, do not name a file.
        raise UserError(f"{error.filename or directory} cannot be used: {error.strerror or error}") from None


def _md5(path: Path) -> str | None:
    """The md5 of a file; None if there is no such file. An ``OSError`` if it is too large to be an archive."""
    if not os.path.isfile(path):
        return None
    with open_regular(path, _LARGEST_ARCHIVE) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
