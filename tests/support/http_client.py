"""A small client for tests of the server, and a server in a thread for it to ask."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from drcil.serving.access import AccessPolicy, Limits
from drcil.serving.api import assets
from drcil.serving.server import Server, bind_socket
from drcil.serving.service import ServerState

HOST = "127.0.0.1"
_PATIENCE = 600.0
"""Seconds; only what hangs takes as long."""
UNHURRIED: dict[str, Any] = {"upload_seconds": _PATIENCE, "decode_seconds": _PATIENCE}
"""Limits that a busy machine does not reach."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Client:
    """Asks a server on the loopback; each request on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_PATIENCE)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(
        self,
        path: str,
        images: Sequence[bytes] = (),
        label: str | None = None,
        headers: Mapping[str, str] | None = None,
        names: Sequence[str] | None = None,
    ) -> Reply:
        kind, body = multipart(images, label, names)
        return self.ask("POST", path, body, {"Content-Type": kind, **(headers or {})})


def multipart(
    images: Sequence[bytes], label: str | None = None, names: Sequence[str] | None = None
) -> tuple[str, bytes]:
    """The kind and the body of a request with files."""
    edge = uuid.uuid4().hex
    parts = [] if label is None else [f'name="label"\r\n\r\n{label}'.encode()]
    for name, image in zip(names or [f"{number}.png" for number in range(len(images))], images, strict=True):
        parts.append(f'name="images"; filename="{name}"\r\n\r\n'.encode() + image)
    body = b"".join(f"--{edge}\r\nContent-Disposition: form-data; ".encode() + part + b"\r\n" for part in parts)
    return f"multipart/form-data; boundary={edge}", body + f"--{edge}--\r\n".encode()


@contextmanager
def serving(
    model: Path, limits: Limits | None = None, token: str | None = None, teach: bool = False, collect: bool = True
) -> Iterator[tuple[Client, ServerState]]:
    """A real server, on a free port."""
    policy = AccessPolicy(HOST, token, teach, collect, frozenset(assets()))
    state = ServerState(model, policy, limits or Limits(**UNHURRIED), "cpu", threads=1)
    is_ready = threading.Event()
    server = Server(state, is_ready.set)
    with bind_socket(HOST, 0) as sock:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])))
        thread.start()
        try:
            assert is_ready.wait(_PATIENCE)
            yield Client(sock.getsockname()[1]), state
        finally:
            server.should_exit = True
            thread.join(_PATIENCE)
            assert not thread.is_alive()
