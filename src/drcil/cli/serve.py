"""``drcil serve``: a model in the browser and over HTTP."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from ..errors import UserError
from ..settings import TOKEN_VARIABLE, RunSettings
from .console import console, warn
from .options import ModelPath, Plugin, check_token, takes

_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
INSTALL = "pip install 'drcil[serve]'"


@takes(RunSettings, only=("device", "threads"), panels=False)
def serve(
    values: dict[str, Any],
    model: ModelPath,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.", min=0, max=2**16 - 1)] = 8000,
    teach: Annotated[bool, typer.Option("--teach", help="Let clients teach the model new classes.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="What clients must know; needed to teach on other hosts than this one.",
            callback=check_token,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Another name that it is reached by, such as that of a proxy; repeatable."),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Serve a model: a page to drop images on, and endpoints for programs."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"'drcil serve' needs {missing[0]}, which is not installed; install it with {INSTALL}")

    from ..serving.server import bind_socket, is_loopback, url_of

    private = token is not None or is_loopback(host)
    if teach and not private:
        raise UserError(f"--teach on --host {host} needs a --token: whoever reaches the server could teach the model")
    screen = console()
    with bind_socket(host, port) as opened:
        from ..models.store import require_store
        from ..process import configure
        from ..serving.access import AccessPolicy
        from ..serving.api import assets
        from ..serving.server import serve as answer
        from ..serving.service import ServerState

        if teach:
            require_store(model)
        policy = AccessPolicy(
            host, token, teach, collect=private, files=frozenset(assets()), names=frozenset(name or ())
        )
        threads = values.get("threads")
        configure(threads)
        state = ServerState(model, policy, device=values.get("device", "auto"), threads=threads)
        message = f"{model}: {len(state.current.model.classes)} classes, at {url_of(opened, host)} (Ctrl-C ends it)"

        def ready() -> None:
            if not private:
                warn(f"whoever reaches {host} can ask the model and see images it remembers; --token keeps others out")
            screen.print(message, markup=False, soft_wrap=True)
            sys.stdout.flush()

        try:
            answer(state, opened, ready)
        except KeyboardInterrupt:
            # Ctrl-C is the regular way to stop the server.
            screen.print("ended", markup=False)
