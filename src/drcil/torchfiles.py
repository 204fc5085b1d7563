"""Tensors in torch's own files: ``.pth``, ``.pth.tar``. Nothing but tensors and plain values is ever unpickled."""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .errors import UserError
from .reading import open_file, unreadable

_ARCHIVE = b"PK\x03\x04"
_BEFORE_ARCHIVES = b"\x80\x02\x8a\x0a"
"""How a file of torch before 1.6 begins, when it was a row of pickles."""


def read_torch_file(path: Path, limit: int, *, before_archives: bool = False) -> Any:
    """What was saved, on the CPU: of an archive whose checksums are right.

    ``before_archives``: files as torch wrote them before 1.6, which have no checksums, are accepted too.
    """
    try:
        with open_file(path, limit) as file:
            start = file.read(4)
            if not (before_archives and start == _BEFORE_ARCHIVES):
                _require_sound_zip(path, file, start, limit)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError) as error:
        raise unreadable(path, error) from error
    except pickle.UnpicklingError:
        raise UserError(f"{path} is refused: it holds Python objects other than tensors and plain values") from None
    except UserError:
        raise
    except Exception:  # a pickle of anything can fail in any way
        kind = "a pickle" if start == _BEFORE_ARCHIVES else "a zip archive"
        raise UserError(f"{path} is not a checkpoint: it is {kind} of something else") from None


def _require_sound_zip(path: Path, file: BinaryIO, start: bytes, limit: int) -> None:
    """An archive of whole members that are stored as they are, which is how torch writes them."""
    try:
        if start != _ARCHIVE:  # Something else may stand before an archive, and torch would read that.
            raise zipfile.BadZipFile
        with zipfile.ZipFile(file) as archive:
            packed = sum(member.file_size for member in archive.infolist()) > limit or any(
                member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()
            )
            damaged = None if packed else archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error):
        raise UserError(f"{path} is not a checkpoint, or it is truncated: it is not a complete zip archive") from None
    if packed:
        raise UserError(f"{path} is not a checkpoint: what is in it is compressed, or more than its size allows")
    if damaged is not None:
        raise UserError(f"{path} is damaged: the checksum of {damaged} in it is wrong")
