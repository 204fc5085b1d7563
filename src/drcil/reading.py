"""Opening files that may be anything: only regular files, of a bounded size, with an error for people otherwise.

A named pipe would be waited for and a device read without end; neither is opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from .errors import UserError

TEXT_LIMIT = 2**28
"""Bytes of a JSON or TOML file, at most: far above what a model of a million exemplars takes."""
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

CHECKSUM = "checksum"
"""The entry of a JSON file that seals the others."""


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file; also for names that the system does not accept."""
    return os.path.isfile(path)


def file_size(path: Path, limit: int | None = None) -> int:
    """Bytes of a regular file; anything else there, or a larger file, is refused."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"cannot read {path}: it is {_kind(status.st_mode)}, not a file")
    if limit is not None and status.st_size > limit:
        raise UserError(f"cannot read {path}: it has {status.st_size} bytes, more than the {limit} that are accepted")
    return status.st_size


def open_file(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """A regular file, open for reading; an ``OSError`` for anything else there, and for a larger file.

    What was opened is looked at, not the name: another file cannot come in between. Without ``O_NONBLOCK`` opening a
    named pipe would wait for someone to write to it.
    """
    handle = os.open(path, os.O_RDONLY | _AT_ONCE)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {_kind(status.st_mode)}, not a file", os.fspath(path))
        if status.st_size > limit:
            why = f"it has {status.st_size} bytes, more than the {limit} that are accepted"
            raise OSError(errno.EFBIG, why, os.fspath(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_to_write(path: str, flags: int) -> int:
    """Open a file to write to; a named pipe is not waited for, and a link not followed."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file."""
    file_size(path, limit)
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error


def read_json(path: Path) -> Any:
    """What a JSON file says. Numbers are finite."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return json.loads(content, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    except RecursionError:
        raise UserError(f"{path} is not valid JSON for drcil: it is nested too deeply") from None


def read_sealed(path: Path) -> dict[str, Any]:
    """What ``write_sealed`` wrote, without its checksum; a file that was changed since is refused."""
    return unsealed(path, read_json(path))


def unsealed(path: Path, found: Any) -> dict[str, Any]:
    """What was found in a sealed file, without its checksum; if it was changed since, it is refused."""
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no table of entries")
    entries = {name: value for name, value in found.items() if name != CHECKSUM}
    try:
        unchanged = found.get(CHECKSUM) == checksum(entries)
    except RecursionError:
        unchanged = False
    if not unchanged:
        raise UserError(f"{path} is damaged or was edited: it does not match its checksum")
    return entries


def checksum(value: Any) -> str:
    """Of something that JSON can say, whatever the order of its entries and the spaces between them."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says. Numbers are finite."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return tomllib.loads(content.decode(), parse_float=_finite)
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise UserError(f"{path} is not valid TOML for drcil: it is nested too deeply") from None


def unreadable(path: Path, error: BaseException) -> UserError:
    """The error for a file that cannot be read."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or "not enough memory"
    return UserError(f"cannot read {_shortened(path)}: {reason}")


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 300 else f"{text[:100]}…{text[-100:]}"


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no finite number")
