"""Writing that is never seen half done: to a temporary name, synced, renamed. And one process at a time."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor

from .errors import FaultError, UserError
from .reading import CHECKSUM, checksum, file_size, open_to_write, read_bytes
from .seals import Seal, require_unchanged


def write_bytes(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, replacing what was there only once all of it is on the disk."""
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        # Never through a link: it would be written to wherever that leads.
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


@contextmanager
def finished_file(path: Path) -> Iterator[Path]:
    """Within the block a file is made at the place that it gives, beside ``path``; at its end it takes its name.

    That is for files that others write, or that are looked at first. If the block fails nothing is left.
    """
    temporary = temporary_name(path)
    try:
        remove_directory(temporary)
        temporary.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        made = temporary / path.name
        yield made
        try:
            with open(made, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(made, path)
            sync_directory(path.parent)
        except OSError as error:
            raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            remove_directory(temporary)


def make_directory(path: Path) -> None:
    """A directory with all above it, if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def share_file(path: Path, directory: Path, limit: int | None = None) -> None:
    """The same file in another directory, if there is none of its name: shared where the disk can do that, or copied.

    ``limit``: bytes that are copied at most.
    """
    make_directory(directory)
    if not os.path.exists(directory / path.name):
        try:
            os.link(path, directory / path.name)
        except OSError:
            write_bytes(directory / path.name, read_bytes(path, limit))


def temporary_name(path: Path) -> Path:
    """What is not to be seen at ``path`` yet, or not any more; ``leftovers`` finds it after a kill."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def leftovers(directory: Path) -> list[Path]:
    """What writes that were killed halfway left behind in a directory: ``.NAME.PROCESS.tmp``."""
    return sorted(path for path in directory.glob(".*.tmp") if re.fullmatch(r"\..+\.[0-9]+\.tmp", path.name))


def sync_directory(directory: Path) -> None:
    """Make a rename inside ``directory`` durable (where the system allows a directory to be synced)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: Path, line: str) -> None:
    """Add a line to a log; one that a kill cut short before is ended first, so that it spoils only itself."""
    try:
        with open(path, "ab+", opener=open_to_write) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def write_json(path: Path, value: Any) -> None:
    try:
        content = (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.end + 10]
        raise UserError(f"cannot write {path}: a name in it cannot be encoded as UTF-8, near {near!a}") from None
    write_bytes(path, content)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file with a checksum of all that it says."""
    # As JSON gives it back: tuples are lists, and keys are strings.
    plain = json.loads(json.dumps(value, allow_nan=False))
    write_json(path, {**plain, CHECKSUM: checksum(plain)})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any] | None = None) -> Seal:
    """Tensors by name in safetensors format, with a JSON note in the header; the file's seal."""
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    content = tensors_as_bytes(plain, metadata={"note": json.dumps(note or {})})
    write_bytes(path, content)
    return Seal.of(content)


def read_tensors(path: Path, seal: Seal | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_tensors`` wrote: the tensors (on the CPU) and the note. With a seal, a changed file is refused."""
    if seal is not None:
        require_unchanged(path, seal)
    file_size(path)
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {}).get("note", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """A directory of files that appears all at once: ``fill`` writes into a temporary one, which is then renamed.

    One that was there before steps aside only for the moment of renaming, and is removed last; a kill in that moment
    is what ``put_back`` is for.
    """
    temporary, former = temporary_name(path), _aside(path)
    try:
        put_back(path)
        remove_directory(temporary)
        temporary.mkdir(parents=True)
        fill(temporary)
        remove_directory(former)
        if os.path.exists(path):
            os.replace(path, former)
        os.replace(temporary, path)
        sync_directory(path.parent)
        remove_directory(former)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            remove_directory(temporary)


def put_back(path: Path) -> None:
    """Give a directory its place again if ``write_directory`` was killed after moving it aside; who reads, asks."""
    # Not by the path's own methods, for which a name that is too long is an error.
    if not os.path.exists(path) and os.path.isdir(_aside(path)):
        with suppress(OSError):
            os.replace(_aside(path), path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def remove(path: Path) -> None:
    """Remove a file, a link or a directory."""
    if path.is_dir():
        remove_directory(path)
    else:
        path.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory, if it is there. Of a link the link goes, not what it leads to."""
    if os.path.islink(path):
        path.unlink()
    elif os.path.isdir(path):
        shutil.rmtree(path)


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Within the block no other process passes here; the second is refused. The lock ends with its process.

    Where there are no such locks (Windows, some network drives) everyone passes.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        file = open(path, "a", opener=open_to_write)  # noqa: SIM115 - closed by the block below
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        try:
            # Of the process, not of the open file: loading workers inherit the file and may outlive a killed parent.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise UserError(refusal) from None
        except OSError:
            pass
        if not _is_at(file.fileno(), path):
            # Who held it has removed it since: others would lock another file.
            raise UserError(refusal)
        yield


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _unwritable(path: Path, error: OSError) -> UserError:
    faulty = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
    return (FaultError if faulty else UserError)(
        f"cannot write {path}: {error.strerror or error}; earlier files are intact"
    )
