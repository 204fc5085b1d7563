"""The command line: one file per verb; parsing and printing only. Verbs import what they need when they are called."""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, cast

import typer

from .. import __version__
from ..errors import FaultError, Interrupted, UserError, shortened
from .change import forget, rename, undo
from .check import check
from .compare import compare
from .data import app as data
from .evaluate import evaluate
from .export import export
from .import_ import import_checkpoints
from .info import info
from .learn import learn
from .list import list_known
from .options import Plugin
from .output import warn
from .paper import paper
from .predict import predict
from .report import report
from .reproduce import reproduce
from .resume import resume
from .run import run
from .serve import serve
from .show import show
from .spreading import ARGUMENTS, EndedTogether, is_heard
from .words import Unprinted, surviving

FAILED, MISUSED, STOPPED = 1, 2, 130
"""Exit codes: something broke; what was given cannot be used; stopped by a signal."""

_LONG_WORD = 1000
"""Characters of one word in what is told: more than any path has that someone could read."""
_POLITE = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

# Typer makes this class public only through its heirs.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="drcil",
    help="Class-incremental learning: image classifiers that keep learning new classes.",
    epilog="Start with 'drcil run mafdrc digits-b0-5', which needs no download.",
    pretty_exceptions_enable=False,
    add_completion=False,
    invoke_without_command=True,
)


@app.callback()
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    plugin: Plugin = None,
) -> None:
    if version:
        print(f"drcil {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command()(run)
app.command()(compare)
app.command()(check)
app.command()(resume)
app.command()(show)
app.command()(evaluate)
app.command()(learn)
app.command()(predict)
app.command()(serve)
app.command()(export)
app.command()(info)
app.command()(rename)
app.command()(forget)
app.command()(undo)
app.command("import")(import_checkpoints)
app.command("list")(list_known)
app.command()(paper)
app.command()(reproduce)
app.command()(report)
app.add_typer(data, name="data")


def main(arguments: Sequence[str] | None = None, app: typer.Typer = app) -> int:
    """Run one command; the exit code. What the user can mend or asked for is told in one line, without a trace."""
    with surviving() as out:
        given = sys.argv[1:] if arguments is None else arguments
        ARGUMENTS.set([*given])
        code = _carried_out(given, app)
        out.flush()
        if code == 0 and out.failure is not None and not isinstance(out.failure, BrokenPipeError):
            warn(f"standard output cannot be written: {out.failure.strerror or out.failure}")
    return code


def _carried_out(arguments: Sequence[str], app: typer.Typer) -> int:
    try:
        with _terminable():
            _require_filled(arguments)
            _require_place()
            command = _command(app, arguments[0] if arguments else "")
            code = command([*arguments], prog_name=app.info.name, standalone_mode=False)
    except UserError as error:
        return _complain(error, FAILED if isinstance(error, FaultError) else MISUSED)
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "drcil"
        return _complain(f"{error.format_message().rstrip('.')}; see '{where} --help'", MISUSED)
    except EndedTogether as end:
        return end.code
    except Interrupted as stop:
        return _complain(str(stop), STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", STOPPED)
    except Unprinted as lost:
        # A reader that goes away has what it wanted.
        return FAILED if isinstance(lost.failure, BrokenPipeError) else _complain(str(lost), FAILED)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"the system refused: {place}{error.strerror or error}", FAILED)
    except Exception as error:
        if _out_of_memory(error):
            return _complain("not enough memory; give smaller images or batches, or use another machine", FAILED)
        if not is_heard(error, FAILED):
            return FAILED
        raise
    return _complain("stopped", STOPPED) if code == STOPPED else int(code or 0)


@functools.cache
def _command(app: typer.Typer, verb: str) -> Callable[..., Any]:
    """What typer makes of a verb and its options, or of all verbs, which takes longer; once in a process."""
    only = [one for one in app.registered_commands if verb == (one.name or getattr(one.callback, "__name__", None))]
    if only:
        app = copy.copy(app)
        app.registered_commands, app.registered_groups = only, []
    return typer.main.get_command(app)


def _require_filled(arguments: Sequence[str]) -> None:
    """No argument is empty; typically it is a variable of the shell that has no value."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not argument.strip():
            option = arguments[place - 1] if place else ""
            raise UserError(f"{option if option.startswith('--') else 'an argument'} must not be empty")
        if name.startswith("--") and equals and not value.strip():
            raise UserError(f"{name} must not be empty")


def _require_place() -> None:
    """The directory that a shell is in may have been removed; libraries would end the process in their own ways."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(f"the current directory cannot be used: {error.strerror}; change to another one") from None


def _out_of_memory(error: Exception) -> bool:
    """Whether it is Python, torch or a device that has no memory left."""
    named = type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    return isinstance(error, MemoryError) or named


def _complain(what: str | Exception, code: int) -> int:
    if is_heard(what, code):
        print(f"drcil: {' '.join(shortened(word, _LONG_WORD) for word in str(what).split())}", file=sys.stderr)
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Within the block a polite kill, or the end of the terminal, is the same as the interrupt key: everything is
    closed on the way out.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Who asked to be left running (nohup) is.
    polite = [number for number in _POLITE if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in polite]
    try:
        yield
    finally:
        for number, handler in zip(polite, before, strict=True):
            signal.signal(number, handler)
