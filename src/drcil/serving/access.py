"""Middleware: host, origin and token checks; size, time and queue limits; Prometheus metrics."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..data.user_images import normalize_class_name

MB = 10**6
_MAX_NAME_LENGTH = 100
"""Characters of a class name."""


@dataclass(frozen=True)
class Limits:
    """Limits on what clients send."""

    file_bytes: int = 20 * MB
    pixels: int = 50 * MB
    """Per image."""
    predict_images: int = 16
    predict_bytes: int = 64 * MB
    """Per request to /predict."""
    teach_images: int = 300
    teach_bytes: int = 300 * MB
    """Per request to /learn or /corrections."""
    collected: int = 500
    """Collected corrections."""
    waiting: int = 32
    """Image requests in progress or queued."""
    waiting_bytes: int = 1000 * MB
    """Total size of these requests: uploads are spooled to the temporary directory, which is often in memory."""
    listeners: int = 16
    """Clients that watch the learning job."""
    upload_seconds: float = 60.0
    """Time for a request body to arrive."""
    decode_seconds: float = 15.0
    """Time to decode one image."""


class Refusal(HTTPException):
    """A rejected request: status and a sentence that says what would be accepted."""


def class_label(text: str) -> str:
    """A class name from a client: one line of printable text. It never becomes part of a path."""
    name = normalize_class_name(text.strip())
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise Refusal(400, f"a class name is one line of 1 to {_MAX_NAME_LENGTH} printable characters")
    return name


PUBLIC_PATHS = {"/health", "/docs", "/openapi.json"}
"""Paths that need no token, besides the page and its files: they reveal nothing about images."""
_UNSAFE_METHODS = {"POST", "DELETE"}


@dataclass(frozen=True)
class AccessPolicy:
    """Who may send which requests.

    Only IP addresses and known names are accepted as the host of a request. This stops DNS rebinding, where a foreign
    domain name resolves to this machine.
    """

    host: str = "127.0.0.1"
    """The value of --host."""
    token: str | None = None
    teach: bool = False
    collect: bool = True
    """Whether corrections are collected."""
    files: frozenset[str] = frozenset()
    """Paths of the page and its files."""
    names: frozenset[str] = frozenset()
    """Further names of the server, such as that of a proxy."""

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise a ``Refusal`` unless the request is allowed."""
        if not self._is_known_host(headers.get("host", "")):
            raise Refusal(421, "the Host header must be an IP address or a name of this server; --name adds a name")
        if method in _UNSAFE_METHODS and not _is_same_origin(headers):
            raise Refusal(403, "requests from pages of other sites are refused")
        if self.token is not None and path not in PUBLIC_PATHS | self.files and not self._has_token(headers):
            challenge = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, "this server needs a token: 'Authorization: Bearer TOKEN'", challenge)

    def _is_known_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        machine = socket.gethostname().lower()
        known_names = {"localhost", self.host.lower(), machine, f"{machine}.local", *map(str.lower, self.names)}
        return name in known_names or _is_address(name)

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Digests have equal lengths, so the comparison does not leak the length of the token.
        digests = [hashlib.sha256(text.strip().encode()).digest() for text in (token, self.token or "")]
        return scheme.lower() == "bearer" and hmac.compare_digest(*digests)


def _is_same_origin(headers: Headers) -> bool:
    """Whether a request comes from our page or from a program: only browsers send an origin."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of request durations in seconds."""
# Otherwise every counter has a second time series with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "drcil_requests", "Answered requests by endpoint and status.", ["endpoint", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "drcil_request_seconds", "Request duration by endpoint.", ["endpoint"], buckets=_BUCKETS, registry=registry
        )
        self.images = Counter("drcil_images", "Uploaded images by outcome.", ["outcome"], registry=registry)
        self.decoders_replaced = Counter(
            "drcil_decoders_replaced", "Decoder processes that crashed, timed out or were cancelled.", registry=registry
        )
        self.lessons = Counter("drcil_lessons", "Learning jobs by outcome.", ["outcome"], registry=registry)
        self.classes = Gauge("drcil_classes", "Classes of the model.", registry=registry)
        self.learning = Gauge("drcil_learning", "Whether a learning job is running.", registry=registry)
        self.waiting = Gauge("drcil_waiting", "Image requests in progress or queued.", registry=registry)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AccessMiddleware:
    """The outermost layer. The body of a refused request is not read."""

    def __init__(
        self,
        app: ASGIApp,
        policy: AccessPolicy,
        limits: Limits,
        metrics: Metrics,
        body_limits: Mapping[str, int],
        require_free: Mapping[str, Callable[[], None]],
    ) -> None:
        """``body_limits``: bytes of a request body by path, 1 MB for others.

        ``require_free``: by path, called before the body of a POST request is read; refuses while the path is busy.
        """
        self._app, self._policy, self._limits, self._metrics = app, policy, limits, metrics
        self._body_limits, self._require_free = body_limits, require_free
        self._waiting, self._waiting_bytes = 0, 0
        metrics.waiting.set_function(lambda: self._waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._admit(scope, receive, send_with_headers)
        finally:
            # The route, not the path: clients can request any number of different paths.
            endpoint = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(endpoint, status).inc()
            self._metrics.request_seconds.labels(endpoint).observe(time.perf_counter() - start)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._body_limits.get(scope["path"], MB)
        try:
            size = self._check(scope, limit)
        except Refusal as refusal:
            response = JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
            await response(scope, receive, send)
            return
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._waiting, self._waiting_bytes = self._waiting + 1, self._waiting_bytes + size
        try:
            await self._app(scope, self._limit_body(receive, limit), send)
        finally:
            self._waiting, self._waiting_bytes = self._waiting - 1, self._waiting_bytes - size

    def _check(self, scope: Scope, limit: int) -> int:
        """The bytes to reserve for the request, unless it is refused."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        self._policy.check(method, path, headers)
        if method == "POST":
            if self._waiting >= self._limits.waiting:
                raise _busy()
            if path in self._require_free:
                self._require_free[path]()
        length = _content_length(headers)
        if length is not None and length > limit:
            raise _too_large(limit)
        size = limit if length is None else length
        if method == "POST" and self._waiting_bytes + size > self._limits.waiting_bytes:
            raise _busy()
        return size

    def _limit_body(self, receive: Receive, limit: int) -> Receive:
        """Receive the body up to the limits of size and time, whatever Content-Length says."""
        deadline = asyncio.get_running_loop().time() + self._limits.upload_seconds
        size, complete = 0, False

        async def receive_limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Refusal(408, f"the request did not arrive within {self._limits.upload_seconds:g} s") from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > limit:
                raise _too_large(limit)
            return message

        return receive_limited


def _content_length(headers: Headers) -> int | None:
    value = headers.get("content-length", "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else None


def _busy() -> Refusal:
    return Refusal(503, "the server is busy; try again in a moment", {"Retry-After": "1"})


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request is larger than {limit / MB:g} MB", {"Connection": "close"})
