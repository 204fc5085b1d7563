"""Downloading a dataset from its home: resumed where it stopped, checked, and only then put in place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ...errors import UserError
from ...reading import file_size, is_file
from .archive import BROKEN, members
from .dataset import ByHand, ByLibrary, find_dataset

Progress = Callable[[int, int | None], None]
"""(bytes so far, bytes in all if known)"""

_BLOCK = 1 << 20
_AS_IT_IS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MOST_UNPACKED = 100
"""How many times the size of an archive its files may have; images hardly shrink."""
_PATIENCE = 30
"""Seconds without a byte before a connection counts as dead."""


def fetch(name: str, data_dir: Path, url: str | None = None, progress: Progress | None = None) -> Path:
    """Make a dataset present in the data directory, and return the folder with its files.

    What is there and right is left alone. ``url``: another place that offers the same archive.
    """
    entry, argument = find_dataset(name)
    home = entry.home
    if isinstance(home, ByLibrary):
        return home.fetch(*argument)
    if isinstance(home, ByHand):
        raise UserError(f"{name} cannot be fetched: {home.reason}")
    with _disk_errors_told(data_dir):
        if not all(_md5(data_dir / file) == md5 for file, md5 in home.files.items()):
            archive = data_dir / Path(urlsplit(home.url).path).name
            kept = _md5(archive) == home.md5
            if not kept:
                download(url or home.url, archive, home.md5, progress)
            _extract(archive, data_dir, home.files)
            if not kept:
                archive.unlink()
    return data_dir / Path(os.path.commonpath([str(Path(file).parent) for file in home.files]))


def download(url: str, target: Path, md5: str, progress: Progress | None = None) -> None:
    """Download to ``target.part``, going on from what is already there; it becomes ``target`` once its md5 is right."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"'{url}' is not an address to download from; it must begin with http:// or https://")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    if _md5(part) != md5:
        _receive(url, part, progress)
    found = _md5(part)
    if found != md5:
        part.unlink(missing_ok=True)
        raise UserError(f"the file from {url} is not the expected one (md5 {found}, expected {md5}); it was deleted")
    os.replace(part, target)


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Append what the server still has to send; a server that cannot resume sends all of it again."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(request, timeout=_PATIENCE)
    except HTTPError as error:
        if error.code == 416 and have:  # Nothing beyond what is there, and it was not right: begin again.
            part.unlink()
            return _receive(url, part, progress)
        raise UserError(f"{url} cannot be downloaded: the server answered {error.code} {error.reason}") from None
    except (URLError, OSError, HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise UserError(f"{url} cannot be reached ({why}); is this machine online?") from None
    with response:
        resumed = response.status == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with _open_part(part, append=resumed) as file:
            done = _copy(response, file, have, total, progress)
    if total is not None and done < total:
        raise UserError(
            f"the connection to {url} broke after {done} of {total} bytes; run the same command again to resume"
        )


def _copy(response: IO[bytes], file: IO[bytes], done: int, total: int | None, progress: Progress | None) -> int:
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, HTTPException):
            block = b""  # A broken connection is an early end, which the caller notices by its length.
        if not block:
            return done
        file.write(block)
        done += len(block)
        if progress is not None:
            progress(done, total)


def _extract(archive: Path, folder: Path, files: Mapping[str, str]) -> None:
    """Put the named members in place, each complete or not at all; no other member is touched."""
    limit = _MOST_UNPACKED * file_size(archive)
    try:
        for name, stream in members(archive, dict.fromkeys(files, limit)):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with _open_part(part) as file:
                while block := stream.read(_BLOCK):
                    file.write(block)
            if (found := _md5(part)) != files[name]:
                part.unlink()
                raise UserError(f"{name} in {archive} is damaged (md5 {found}, expected {files[name]})")
            os.replace(part, target)
    except BROKEN as error:
        raise UserError(f"{archive} cannot be unpacked: {error}") from None


def _open_part(path: Path, append: bool = False) -> IO[bytes]:
    """A file to write to, new or begun before. Neither is a link followed, nor a named pipe waited for."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC) | _AS_IT_IS
    return os.fdopen(os.open(path, flags, 0o666), "ab" if append else "wb")


@contextmanager
def _disk_errors_told(directory: Path) -> Iterator[None]:
    """What the disk refuses within the block, as one sentence. The network's errors are told where they arise."""
    try:
        yield
    except OSError as error:
        # Some errors, such as that of a full disk, do not say which file they are about.
        raise UserError(f"{error.filename or directory} cannot be used: {error.strerror or error}") from None


def _md5(path: Path) -> str | None:
    """The md5 of a file; None if there is no such file."""
    if not is_file(path):
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
