"""Reads regular files of bounded size; writes files and directories atomically; JSON, TOML, tensors, checksums, locks.

``open_regular`` opens every file that is read: opening a named pipe would wait for a writer, and reading a device would
never end. Everything is written under a temporary name, synced and renamed.

The directory that a user names may be a link. Links inside it are not followed: every directory below it is opened
relative to its parent, and files are created, renamed and removed there, so that nothing outside can be reached.

Torch is imported only by the functions that read or write tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import stat
import struct
import threading
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, NoReturn

from pydantic import Field
from safetensors import SafetensorError, safe_open

from .errors import FaultError, UserError, shortened

if TYPE_CHECKING:
    from torch import Tensor

TEXT_LIMIT = 2**28
"""Largest JSON or TOML file in bytes, far more than a model with a million exemplars needs."""
CHECKSUM = "checksum"
"""Entry of a JSON file with the checksum of the other entries."""
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str], limit: int | None = None) -> BufferedReader:
    """Open a regular file of at most ``limit`` bytes for reading; raises ``OSError`` for anything else.

    The check is on the open file, not on the name, so another file cannot take its place in between.
    """
    handle = os.open(path, os.O_RDONLY | _NO_WAIT)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {_kind(status.st_mode)}, not a file", os.fspath(path))
        if limit is not None and status.st_size > limit:
            reason = f"it has {status.st_size} bytes, more than the {limit} that are accepted"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def unreadable(path: str | os.PathLike[str], error: BaseException) -> UserError:
    """The error for a file that cannot be read."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or "not enough memory"
    text = str(path)
    return UserError(f"cannot read {text if len(text) <= 300 else f'{text[:100]}…{text[-100:]}'}: {reason}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of opening and reading a file into sentences; a name with a null byte is a ``ValueError``."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        raise unreadable(path, error) from error


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file."""
    with _reading(path), open_regular(path, limit) as file:
        return file.read()


def read_json(path: Path) -> Any:
    """The value in a JSON file. Numbers are finite."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return json.loads(content, parse_constant=_refuse_constant, parse_float=_finite)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    except RecursionError:
        raise UserError(f"{path} is not valid JSON for drcil: it is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Numbers are finite."""
    content = read_bytes(path, TEXT_LIMIT)
    try:
        return tomllib.loads(content.decode(), parse_float=_finite)
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise UserError(f"{path} is not valid TOML for drcil: it is nested too deeply") from None


def read_checksummed_json(path: Path) -> dict[str, Any]:
    """The entries that ``write_checksummed_json`` wrote; a file that was changed since is refused."""
    return verified_entries(path, read_json(path))


def verified_entries(path: Path, value: Any) -> dict[str, Any]:
    """The entries of a checksummed JSON file whose content is ``value``, without the checksum, which must match."""
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it is not a table of entries")
    entries = {name: entry for name, entry in value.items() if name != CHECKSUM}
    try:
        unchanged = value.get(CHECKSUM) == checksum(entries)
    except RecursionError:
        unchanged = False
    if not unchanged:
        raise UserError(f"{path} is damaged or was edited: it does not match its checksum")
    return entries


def checksum(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of entries and of white space."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


@dataclass(frozen=True)
class FileChecksum:
    """Size and SHA-256 of a file, recorded when it is written and compared when it is read."""

    size: Annotated[int, Field(ge=0)]
    checksum: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, content: bytes) -> FileChecksum:
        return cls(len(content), hashlib.sha256(content).hexdigest())

    @classmethod
    def of_file(cls, path: Path, limit: int | None = None) -> FileChecksum:
        with _reading(path), open_regular(path, limit) as file:
            return cls(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def verify_checksum(path: Path, expected: FileChecksum) -> None:
    """Refuse a file that is not the one whose checksum was recorded."""
    with _reading(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest() if size == expected.size else None
    if digest is None:
        raise UserError(f"{path} is damaged: it has {size} bytes, but {expected.size} were written; restore it")
    if digest != expected.checksum:
        raise UserError(f"{path} is damaged: its checksum is not that of the file that was written; restore it")


_HAS_DIR_FD = {os.open, os.stat, os.mkdir, os.rename, os.unlink, os.rmdir} <= os.supports_dir_fd
"""Whether names can be looked up in an open directory. Windows cannot."""


def file_name(name: str, what: str) -> str:
    """``name``, if it can be the name of a file and not a path to elsewhere; ``what`` it names, for the error."""
    if name in ("", os.curdir, os.pardir) or any(mark in name for mark in (os.sep, os.altsep or os.sep, "\0")):
        raise UserError(f"{what} cannot be the name of a file: '{shortened(name)}'; give one without '{os.sep}'")
    return name


def _open_to_write(path: str, flags: int, directory: int | None = None) -> int:
    """Open a file in an open directory: a named pipe is not waited for, a link not followed."""
    return os.open(path, flags | _NO_WAIT | getattr(os, "O_NOFOLLOW", 0), 0o666, dir_fd=directory)


class _Directory(NamedTuple):
    """An open directory, in which names are looked up through its handle and links are not followed."""

    path: Path
    handle: int | None
    """None where the system has no such handles; names are then looked up by path."""

    def at(self, name: str) -> str:
        return name if self.handle is not None else str(self.path / name)

    def status(self, name: str) -> os.stat_result | None:
        """Status of the name itself, also if it is a link; None if it does not exist."""
        try:
            return os.stat(self.at(name), dir_fd=self.handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return os.listdir(self.path if self.handle is None else self.handle)

    def open(self, name: str, flags: int) -> int:
        return _open_to_write(self.at(name), flags, self.handle)

    def make(self, name: str) -> None:
        os.mkdir(self.at(name), dir_fd=self.handle)

    def rename(self, name: str, new: str) -> None:
        os.replace(self.at(name), self.at(new), src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def remove(self, name: str) -> None:
        """Remove a file, a directory with its content, or a link, if it exists."""
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            shutil.rmtree(self.at(name), dir_fd=self.handle)
        elif status is not None:
            os.unlink(self.at(name), dir_fd=self.handle)

    def sync(self) -> None:
        """Make renames durable, where the system can."""
        if self.handle is not None:
            os.fsync(self.handle)


@contextmanager
def _open_directory(path: Path, root: Path | None, create: bool = False) -> Iterator[_Directory]:
    """Open the directory at ``path`` step by step; links below ``root`` (None: ``path`` itself) are refused.

    ``create``: it is created with its parents if it does not exist.
    """
    root = path if root is None else root
    if create:
        with suppress(FileExistsError):  # A file in its place is reported below.
            root.mkdir(parents=True, exist_ok=True)
    directory = _Directory(root, os.open(root, os.O_RDONLY | os.O_DIRECTORY) if _HAS_DIR_FD else None)
    try:
        for name in path.relative_to(root).parts:
            file_name(name, "a part of a path")
            if create:
                with suppress(FileExistsError):
                    directory.make(name)
            _refuse_link(directory, name, root)
            inner = directory.open(name, os.O_RDONLY | os.O_DIRECTORY) if _HAS_DIR_FD else None
            if directory.handle is not None:
                os.close(directory.handle)
            directory = _Directory(directory.path / name, inner)
        yield directory
    finally:
        if directory.handle is not None:
            os.close(directory.handle)


def _refuse_link(directory: _Directory, name: str, root: Path) -> None:
    status = directory.status(name)
    if status is not None and stat.S_ISLNK(status.st_mode):
        raise UserError(
            f"{directory.path / name} is a link, and drcil follows no links inside {root}; put a directory in its place"
        )


def require_directories(root: Path, *names: str) -> None:
    """Refuse a link or a file that has one of these names in the directory ``root``."""
    if not os.path.isdir(root):
        return
    with _open_directory(root, None) as directory:
        for name in names:
            _refuse_link(directory, name, root)
            status = directory.status(name)
            if status is not None and not stat.S_ISDIR(status.st_mode):
                raise UserError(f"{root / name} is not a directory; remove it")


def temporary_name(path: Path) -> Path:
    """The temporary name for ``path`` in this thread; ``stale_temporary_files`` lists it after a kill."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")


def _final_name(name: str) -> str:
    """The name that a temporary name stands for; any other name is returned as it is."""
    match = re.fullmatch(r"\.(.+)\.[0-9]+(-[0-9]+)?\.tmp", name)
    return match[1] if match else name


def stale_temporary_files(directory: Path, is_ours: Callable[[str], bool]) -> list[Path]:
    """Temporary files that killed processes left in a directory, of the final names for which ``is_ours`` holds."""
    return sorted(path for path in directory.glob(".*.tmp") if is_ours(_final_name(path.name)))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the errors of writing a file into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            reason = "it is a link, and drcil follows no links there; remove the link"
            raise UserError(f"cannot write {path}: {reason}") from error
        is_fault = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
        sentence = f"cannot write {path}: {error.strerror or error}; earlier files are intact"
        raise (FaultError if is_fault else UserError)(sentence) from error


@contextmanager
def _temporary(path: Path, root: Path | None) -> Iterator[tuple[_Directory, str]]:
    """Yield the open directory of ``path`` and a temporary name in it; what has that name at the end is removed."""
    name = temporary_name(path).name
    with _writing(path), _open_directory(path.parent, root, create=True) as directory:
        try:
            directory.remove(name)
            yield directory, name
        finally:
            with suppress(OSError):
                directory.remove(name)


def write_bytes(path: Path, content: bytes, root: Path | None = None) -> None:
    """Write a file atomically: an existing file is replaced only when all of ``content`` is on the disk.

    ``root``: the directory that the user named; links below it are refused (None: the directory of the file).
    """
    with _temporary(path, root) as (directory, name):
        with os.fdopen(directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        directory.rename(name, path.name)
        directory.sync()


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path of the same file name in a temporary directory; the file written there replaces ``path``.

    For files that other libraries write, or that are checked first. If the block fails nothing is left.
    """
    with _temporary(path, None) as (directory, name):
        directory.make(name)
        temporary = path.with_name(name) / path.name
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory.sync()


@contextmanager
def atomic_directory(path: Path, root: Path | None = None) -> Iterator[Path]:
    """Yield a temporary directory to write files into; at the end of the block it replaces ``path``.

    An existing directory is moved aside before the rename and removed after it; ``restore_replaced`` undoes that if
    the process is killed in between.
    """
    with _temporary(path, root) as (directory, name):
        previous = _backup_path(path).name
        _restore_backup(directory, path.name)
        directory.make(name)
        yield path.with_name(name)
        directory.remove(previous)
        if directory.status(path.name) is not None:
            directory.rename(path.name, previous)
        directory.rename(name, path.name)
        directory.sync()
        directory.remove(previous)


def restore_replaced(path: Path) -> None:
    """Restore a directory that a killed ``atomic_directory`` had moved aside; call it before reading."""
    # os.path, because methods of Path raise for names that are too long.
    if not os.path.lexists(path) and os.path.lexists(_backup_path(path)):
        with suppress(OSError), _open_directory(path.parent, None) as directory:
            _restore_backup(directory, path.name)


def _restore_backup(directory: _Directory, name: str) -> None:
    backup = _backup_path(Path(name)).name
    status = directory.status(backup)
    if status is not None and stat.S_ISDIR(status.st_mode) and directory.status(name) is None:
        directory.rename(backup, name)


def _backup_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def make_directory(path: Path, root: Path | None = None) -> None:
    """Create a directory with its parents, if it does not exist."""
    with _writing(path), _open_directory(path, root, create=True):
        pass


def share_file(path: Path, directory: Path, limit: int | None = None) -> None:
    """Put a file into another directory as a hard link, or as a copy of at most ``limit`` bytes where links fail.

    An existing file of this name is not replaced.
    """
    make_directory(directory)
    if not os.path.exists(directory / path.name):
        try:
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "the target of a symbolic link is copied")
            os.link(path, directory / path.name)
        except OSError:
            write_bytes(directory / path.name, read_bytes(path, limit))


def open_log(path: Path, root: Path | None = None) -> BinaryIO:
    """Open a file to append to. With ``root``, its directory is created if it does not exist."""
    with _writing(path), _open_directory(path.parent, root, create=root is not None) as directory:
        return os.fdopen(directory.open(path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab+")


def append_line(path: Path, line: str, root: Path | None = None) -> None:
    """Append a line to a log. A last line that a kill cut short is ended first, so the new line is readable."""
    with open_log(path, root) as file, _writing(path):
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        file.flush()


def write_json(path: Path, value: Any) -> None:
    try:
        content = (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.end + 10]
        raise UserError(f"cannot write {path}: a name in it cannot be encoded as UTF-8, near {near!a}") from None
    write_bytes(path, content)


def write_checksummed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file with a checksum of its entries."""
    # As JSON reads it back: tuples are lists, and keys are strings.
    entries = json.loads(json.dumps(value, allow_nan=False))
    write_json(path, {**entries, CHECKSUM: checksum(entries)})


def remove(path: Path, root: Path | None = None) -> None:
    """Remove a file, a directory with its content, or a link (not its target), if it exists.

    ``root``: the directory that the user named; links below it are refused (None: the directory of ``path``).
    """
    with suppress(FileNotFoundError), _open_directory(path.parent, root) as directory:
        directory.remove(path.name)


def remove_atomically(path: Path, root: Path | None = None) -> None:
    """Remove a directory under a temporary name, so that a kill leaves no part of it under its own name."""
    with _open_directory(path.parent, root) as directory:
        temporary = temporary_name(path).name
        directory.remove(temporary)
        directory.rename(path.name, temporary)
        directory.remove(temporary)


def remove_files(path: Path, is_ours: Callable[[str], bool], root: Path | None = None) -> None:
    """Remove the files of a directory for whose names ``is_ours`` holds, and the directory if it is then empty."""
    with suppress(FileNotFoundError):
        with _open_directory(path, root) as directory:
            for name in directory.names():
                status = directory.status(name)
                if status is not None and not stat.S_ISDIR(status.st_mode) and is_ours(_final_name(name)):
                    directory.remove(name)
            if directory.names():
                return
        with _open_directory(path.parent, None if path == root else root) as parent, suppress(OSError):
            os.rmdir(parent.at(path.name), dir_fd=parent.handle)


@contextmanager
def file_lock(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock on a file within the block; raises a ``UserError`` with ``refusal`` if another process holds it.

    The lock ends with the process. Where there are no such locks (Windows, some network drives) nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with _writing(path):
        file = open(path, "a", opener=_open_to_write)  # noqa: SIM115 - closed by the block below
    with file:
        try:
            # A lock of the process, not of the open file: loading workers inherit the file and may outlive a killed
            # parent.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise UserError(refusal) from None
        except OSError:
            pass
        if not _is_at(file.fileno(), path):
            # The process that held it has removed the file: others would lock another one.
            raise UserError(refusal)
        yield


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any] | None = None, root: Path | None = None
) -> FileChecksum:
    """Write named tensors in safetensors format with a JSON note in the header; returns the checksum of the file."""
    import torch
    from safetensors.torch import save

    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    content = save(plain, metadata={"note": json.dumps(note or {})})
    write_bytes(path, content, root)
    return FileChecksum.of(content)


def read_tensors(path: Path, expected: FileChecksum | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the note that ``write_tensors`` wrote; ``expected``: the checksum of the file."""
    if expected is not None:
        verify_checksum(path, expected)
    try:
        with _reading(path), open_regular(path), safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {}).get("note", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118 - not a dict
    except (SafetensorError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


_ZIP_START = b"PK\x03\x04"
_LEGACY_START = b"\x80\x02\x8a\x0a"
"""First bytes of a file of torch before 1.6, which is a sequence of pickles."""


def read_torch_file(path: Path, limit: int, *, legacy: bool = False) -> Any:
    """What ``torch.save`` wrote, on the CPU, from an archive whose checksums are right.

    ``legacy``: files of torch before 1.6, which have no checksums, are accepted too.
    """
    import torch

    start = b""
    try:
        with open_regular(path, limit) as file:
            start = file.read(4)
            if not (legacy and start == _LEGACY_START):
                _require_sound_zip(path, file, start, limit)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error
    except pickle.UnpicklingError:
        raise UserError(f"{path} is refused: it holds Python objects other than tensors and plain values") from None
    except UserError:
        raise
    except Exception:  # Unpickling can fail with any error.
        kind = "a pickle" if start == _LEGACY_START else "a zip archive"
        raise UserError(f"{path} is not a checkpoint: it is {kind} of something else") from None


def _require_sound_zip(path: Path, file: BinaryIO, start: bytes, limit: int) -> None:
    """Refuse an archive that is damaged, or whose members are compressed; torch stores them as they are."""
    try:
        if start != _ZIP_START:  # Other content may precede an archive, and torch would read that.
            raise zipfile.BadZipFile
        with zipfile.ZipFile(file) as archive:
            packed = sum(member.file_size for member in archive.infolist()) > limit or any(
                member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()
            )
            damaged = None if packed else archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error):
        raise UserError(f"{path} is not a checkpoint, or it is truncated: it is not a complete zip archive") from None
    if packed:
        raise UserError(f"{path} is not a checkpoint: its content is compressed, or larger than the file allows")
    if damaged is not None:
        raise UserError(f"{path} is damaged: the checksum of {damaged} in it is wrong")
