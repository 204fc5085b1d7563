"""Socket, URL and uvicorn."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from ..errors import FaultError, UserError
from .access import AccessMiddleware
from .api import make_app
from .service import ServerState

_CONNECTIONS, _BACKLOG = 256, 128
_SHUTDOWN_SECONDS = 5
"""Time for requests in progress to finish when the server stops."""


class Server(uvicorn.Server):
    """The API behind its access checks; ``on_ready`` is called when it accepts requests."""

    def __init__(self, state: ServerState, on_ready: Callable[[], None]) -> None:
        limits = state.limits
        teach_bytes = limits.teach_bytes
        body_limits = {"/predict": limits.predict_bytes, "/learn": teach_bytes, "/corrections": teach_bytes}
        app = AccessMiddleware(
            make_app(state), state.policy, limits, state.metrics, body_limits, {"/learn": state.require_not_learning}
        )
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                log_level="error",
                access_log=False,
                ws="none",
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )
        self._state, self._on_ready = state, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Event streams would never end by themselves.
        await self._state.learn_job.close()
        await super().shutdown(sockets)


def serve(state: ServerState, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until the process is interrupted or terminated."""
    # Malformed requests are reported to the client, not to the log.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    server = Server(state, on_ready)
    with suppress(SystemExit):
        server.run([sock])
    if not server.started:
        raise FaultError("the server could not be started; the lines above say why")


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host '{host}' is no address or name of this machine") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; give another --port or --host"
        ) from None
    return sock


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def url_of(sock: socket.socket, host: str) -> str:
    """The URL of the page."""
    try:
        is_unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_unspecified = False
    name = socket.gethostname() if is_unspecified else f"[{host}]" if ":" in host else host
    return f"http://{name}:{sock.getsockname()[1]}/"
