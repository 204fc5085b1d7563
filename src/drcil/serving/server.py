"""A server on a socket, from its first answer to its last."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from ..errors import FaultError
from .app import make_app
from .desk import Desk
from .guard import Guard

_CONNECTIONS = 256
_GOODBYE = 5
"""Seconds for requests to be answered when the server is stopped."""


class _Server(uvicorn.Server):
    """Ends the streams that would never end by themselves before it waits for all others."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._desk.lessons.close()
        await super().shutdown(sockets)


def guarded(desk: Desk) -> Guard:
    """The endpoints behind their guard."""
    limits = desk.limits
    sizes = {"/predict": limits.predict_bytes, "/learn": limits.teach_bytes, "/corrections": limits.teach_bytes}
    return Guard(make_app(desk), desk.rules, limits, desk.metrics, sizes, {"/learn": desk.engaged})


def serve(desk: Desk, opened: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until the process is told to stop."""
    # What is wrong with a request is told to whoever sent it.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    asyncio.run(_served(desk, opened, ready))


async def _served(desk: Desk, opened: socket.socket, ready: Callable[[], None]) -> None:
    server = make_server(desk)
    serving = asyncio.create_task(server.serve([opened]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.02)
    if not server.started:
        await serving
        raise FaultError("the server could not be started; the lines above say why")
    ready()
    await serving


def make_server(desk: Desk) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            guarded(desk),
            log_level="error",
            access_log=False,
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_GOODBYE,
        ),
        desk,
    )
