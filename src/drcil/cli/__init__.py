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
from ..process import COMMAND, ProcessesEnded, claim_error_report
from .compare import compare, reproduce
from .console import OutputError, tolerant_output, warn, warnings_as_sentences
from .data import app as data
from .export import export, import_checkpoints
from .info import info
from .learn import forget, learn, rename, undo
from .list import check, list_known
from .options import Plugin
from .paper import paper
from .predict import evaluate, predict
from .report import report
from .run import resume, run, show
from .serve import serve

FAILED, MISUSED, STOPPED = 1, 2, 130
"""Exit codes: failure; unusable input; stopped by a signal."""

_LONG_WORD = 1000
"""Characters of the longest word in a message: longer than any readable path."""
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
    """Run one command; returns the exit code. Errors of the user are reported in one line, without a traceback."""
    with tolerant_output() as out:
        argv = sys.argv[1:] if arguments is None else arguments
        COMMAND.set(functools.partial(main, [*argv]))
        if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
            # DistributedDataParallel warns that no parameter is unused; torch reads this when it is imported.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        code = _run_command(argv, app)
        out.flush()
        if code == 0 and out.failure is not None and not isinstance(out.failure, BrokenPipeError):
            warn(f"standard output cannot be written: {out.failure.strerror or out.failure}")
    return code


def _run_command(arguments: Sequence[str], app: typer.Typer) -> int:
    try:
        with _terminable(), warnings_as_sentences():
            _require_filled(arguments)
            _require_directory()
            command = _command(app, arguments[0] if arguments else "")
            code = command([*arguments], prog_name=app.info.name, standalone_mode=False)
    except UserError as error:
        return _complain(error, FAILED if isinstance(error, FaultError) else MISUSED)
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "drcil"
        return _complain(f"{error.format_message().rstrip('.')}; see '{where} --help'", MISUSED)
    except ProcessesEnded as end:
        return end.code
    except Interrupted as stop:
        return _complain(str(stop), STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", STOPPED)
    except OutputError as lost:
        # The reader closed the pipe, such as head: not an error.
        return FAILED if isinstance(lost.failure, BrokenPipeError) else _complain(str(lost), FAILED)
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        return _complain(f"the system refused: {prefix}{error.strerror or error}", FAILED)
    except Exception as error:
        if _out_of_memory(error):
            return _complain("not enough memory; give smaller images or batches, or use another machine", FAILED)
        if not claim_error_report(error, is_interrupt=False):
            return FAILED
        raise
    return _complain("stopped", STOPPED) if code == STOPPED else int(code or 0)


@functools.cache
def _command(app: typer.Typer, verb: str) -> Callable[..., Any]:
    """The click command of a verb, or of all verbs, which takes longer; built once in a process."""
    selected = [
        command
        for command in app.registered_commands
        if verb == (command.name or getattr(command.callback, "__name__", None))
    ]
    if selected:
        app = copy.copy(app)
        app.registered_commands, app.registered_groups = selected, []
    return typer.main.get_command(app)


def _require_filled(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, which are typically unset shell variables."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not argument.strip():
            option = arguments[position - 1] if position else ""
            raise UserError(f"{option if option.startswith('--') else 'an argument'} must not be empty")
        if name.startswith("--") and equals and not value.strip():
            raise UserError(f"{name} must not be empty")


def _require_directory() -> None:
    """Check that the current directory exists; libraries would fail with a traceback."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(f"the current directory cannot be used: {error.strerror}; change to another one") from None


def _out_of_memory(error: Exception) -> bool:
    """Whether Python, torch or a device is out of memory."""
    named = type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)
    return isinstance(error, MemoryError) or named


def _complain(message: str | Exception, code: int) -> int:
    if claim_error_report(message, is_interrupt=code == STOPPED):
        print(f"drcil: {' '.join(shortened(word, _LONG_WORD) for word in str(message).split())}", file=sys.stderr)
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Within the block a polite kill, or the end of the terminal, is the same as the interrupt key: everything is
    closed on the way out.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Signals that are ignored, as under nohup, stay ignored.
    polite = [number for number in _POLITE if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in polite]
    try:
        yield
    finally:
        for number, handler in zip(polite, before, strict=True):
            signal.signal(number, handler)
