"""Printing: console, JSON, tables, output streams that may fail."""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


_PIPE_WIDTH = 160
"""Width of tables that are written to a file or a pipe, unless COLUMNS is set."""


def console(stderr: bool = False) -> Console:
    """For people; on standard error when standard output is for JSON."""
    from rich.console import Console

    fits = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if fits else _PIPE_WIDTH)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


def warn(sentence: str) -> None:
    print(f"drcil: warning: {sentence}", file=sys.stderr)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Within the block, print warnings of the library like warnings of the command line."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, UserWarning):
            warn(str(message))
        else:
            before(message, category, *where, **options)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.showwarning = show
        yield


_DIGITS = 4
"""Digits of the width of a window at most."""


class TolerantStream:
    """A text stream on which printing never fails. The first error is recorded."""

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
        except (OSError, ValueError) as error:  # A ValueError: the stream is closed.
            lost = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))
            self.failure = self.failure or lost
            # The buffer is discarded too; otherwise the interpreter would fail to flush it at exit.
            with suppress(OSError, ValueError):
                _lead_to_nowhere(self._stream.fileno())


@contextmanager
def tolerant_output() -> Iterator[TolerantStream]:
    """Within the block, printing never raises an error; characters that cannot be encoded become ``?``."""
    for number in range(3):
        _occupy(number)
    _unset_invalid_window_sizes()
    before = sys.stdout, sys.stderr
    streams = [stream for stream in before if hasattr(stream, "reconfigure")]
    handling = [stream.errors for stream in streams]
    for stream in streams:
        _handle_errors(stream, "replace")
    out, err = _make_tolerant(before[0]), _make_tolerant(before[1])
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
        for stream, errors in zip(streams, handling, strict=True):
            _handle_errors(stream, errors)


def flush_output() -> None:
    """For a verb that only prints: fail if its output could not be written."""
    sys.stdout.flush()
    failure = getattr(sys.stdout, "failure", None)
    if failure is not None:
        raise OutputError(failure)


class OutputError(Exception):
    """The output of a command could not be written."""

    def __init__(self, failure: OSError) -> None:
        super().__init__(f"standard output cannot be written: {failure.strerror or failure}")
        self.failure = failure


def _unset_invalid_window_sizes() -> None:
    """Unset window sizes that are invalid, such as 0: tables could not be fitted."""
    for name in ("COLUMNS", "LINES"):
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isdecimal() and len(value) <= _DIGITS and int(value)):
            os.environ.pop(name, None)


def _make_tolerant(stream: TextIO | None) -> TolerantStream:
    if stream is not None:
        return TolerantStream(stream)
    # None if the interpreter was started with a closed stream.
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process prints
    return TolerantStream(nowhere, OSError(errno.EBADF, os.strerror(errno.EBADF)))


def _handle_errors(stream: Any, errors: str | None) -> None:
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _occupy(number: int) -> None:
    """Open the null device for a closed standard stream: the next opened file would get its descriptor."""
    try:
        os.fstat(number)
    except OSError:
        _lead_to_nowhere(number)


def _lead_to_nowhere(number: int) -> None:
    handle = os.open(os.devnull, os.O_RDWR)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
