"""The command line: one file per verb; parsing and printing only. Verbs import what they need when they are called."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, cast

import typer

from .. import __version__
from ..errors import Interrupted, UserError
from .check import check
from .compare import compare
from .data import app as data
from .evaluate import evaluate
from .import_ import import_checkpoints
from .list import list_known
from .options import Plugin
from .resume import resume
from .run import run
from .show import show

FAILED, MISUSED, STOPPED = 1, 2, 130
"""Exit codes: something broke; what was given cannot be used; stopped by a signal."""

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
app.command("import")(import_checkpoints)
app.command("list")(list_known)
app.add_typer(data, name="data")


def main(arguments: Sequence[str] | None = None, app: typer.Typer = app) -> int:
    """Run one command; the exit code. What the user can mend or asked for is told in one line, without a trace."""
    try:
        with _terminable():
            code = app(arguments, prog_name=app.info.name, standalone_mode=False)
            # What stays in the buffer would be written after this, where a closed pipe cannot be caught.
            sys.stdout.flush()
    except UserError as error:
        return _complain(str(error), MISUSED)
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "drcil"
        return _complain(f"{error.format_message().rstrip('.')}; see '{where} --help'", MISUSED)
    except Interrupted as stop:
        return _complain(str(stop), STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return _complain("stopped", STOPPED) if code == STOPPED else int(code or 0)


def _complain(sentence: str, code: int) -> int:
    print(f"drcil: {' '.join(sentence.split())}", file=sys.stderr)
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Within the block a polite kill is the same as the interrupt key: everything is closed on the way out."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
