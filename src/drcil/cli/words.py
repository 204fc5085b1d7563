"""Printed words that may get lost: a full, closed or simple-minded output does not end the work."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_DIGITS = 4
"""Of the width of a window."""


class Words:
    """A text stream on which printing never fails. What went wrong first is kept."""

    def __init__(self, stream: TextIO, failure: OSError | None = None) -> None:
        self._stream, self.failure = stream, failure

    def write(self, text: str) -> int:
        with self._tolerant():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._tolerant():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # A ValueError: it was closed meanwhile.
            lost = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))
            self.failure = self.failure or lost
            # What is still in its buffer goes there too; otherwise the interpreter would stumble over it at its end.
            with suppress(OSError, ValueError):
                _lead_to_nowhere(self._stream.fileno())


@contextmanager
def surviving() -> Iterator[Words]:
    """Within the block nothing that is printed raises an error; characters that cannot be encoded become ``?``."""
    for number in range(3):
        _occupy(number)
    _forget_impossible_windows()
    before = sys.stdout, sys.stderr
    streams = [stream for stream in before if hasattr(stream, "reconfigure")]
    handling = [stream.errors for stream in streams]
    for stream in streams:
        _handle_errors(stream, "replace")
    out, err = _words(before[0]), _words(before[1])
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
        for stream, errors in zip(streams, handling, strict=True):
            _handle_errors(stream, errors)


def require_printed() -> None:
    """For a verb that only prints: its words must have arrived."""
    sys.stdout.flush()
    failure = getattr(sys.stdout, "failure", None)
    if failure is not None:
        raise Unprinted(failure)


class Unprinted(Exception):
    """The words that were asked for are lost, for this reason."""

    def __init__(self, failure: OSError) -> None:
        super().__init__(f"standard output cannot be written: {failure.strerror or failure}")
        self.failure = failure


def _forget_impossible_windows() -> None:
    """Sizes of a window that are none, such as 0: tables that are made to fit would fail."""
    for name in ("COLUMNS", "LINES"):
        given = os.environ.get(name, "")
        if not (given.isascii() and given.isdecimal() and len(given) <= _DIGITS and int(given)):
            os.environ.pop(name, None)


def _words(stream: TextIO | None) -> Words:
    if stream is not None:
        return Words(stream)
    # The interpreter has none where it was started without.
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process prints
    return Words(nowhere, OSError(errno.EBADF, os.strerror(errno.EBADF)))


def _handle_errors(stream: Any, errors: str | None) -> None:
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _occupy(number: int) -> None:
    """Let a standard stream that is closed lead nowhere: the next file to be opened would take its place."""
    try:
        os.fstat(number)
    except OSError:
        _lead_to_nowhere(number)


def _lead_to_nowhere(number: int) -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
