"""``drcil serve``: a model in the browser and over HTTP."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from ..limits import PORT, THREADS
from ..serving.environment import TOKEN
from .checks import a_token, known_device, usable, within
from .options import Plugin
from .output import console, warn

_NEEDED = ("fastapi", "uvicorn", "python_multipart")
INSTALL = "pip install 'drcil[serve]'"


def serve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model directory, or a run: its last task.", callback=usable)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.", callback=within(PORT))] = 8000,
    teach: Annotated[bool, typer.Option("--teach", help="Let clients teach the model new classes.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN,
            help="What clients must know; needed to teach on other hosts than this one.",
            callback=a_token,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Another name that it is reached by, such as that of a proxy; repeatable."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.", callback=known_device)] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the net.", show_default="all cores", callback=within(THREADS))
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Serve a model: a page to drop images on, and endpoints for programs."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"'drcil serve' needs {missing[0]}, which is not installed; install it with {INSTALL}")

    from ..serving.listening import address_of, is_loopback, open_socket

    private = token is not None or is_loopback(host)
    if teach and not private:
        raise UserError(f"--teach on --host {host} needs a --token: whoever reaches the server could teach the model")
    screen = console()
    with open_socket(host, port) as opened:
        from ..models.versions import require_kept
        from ..process import configure
        from ..serving.assets import assets
        from ..serving.desk import Desk
        from ..serving.rules import Rules
        from ..serving.server import serve as answer

        if teach:
            require_kept(model)
        rules = Rules(host, token, teach, collect=private, files=frozenset(assets()), names=frozenset(name or ()))
        configure(threads)
        desk = Desk(model, rules, device=device, threads=threads)
        told = f"{model}: {len(desk.current.model.classes)} classes, at {address_of(opened, host)} (Ctrl-C ends it)"

        def ready() -> None:
            if not private:
                warn(f"whoever reaches {host} can ask the model and see images it remembers; --token keeps others out")
            screen.print(told, markup=False, soft_wrap=True)
            sys.stdout.flush()

        try:
            answer(desk, opened, ready)
        except KeyboardInterrupt:
            # The way to end a server, and no failure.
            screen.print("ended", markup=False)
