"""What every request passes first: the rules, the bounds of its size and time, and a place in the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .limits import MB, Limits, Refusal
from .metrics import Metrics
from .rules import Rules

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SOON = {"Retry-After": "1"}


class Guard:
    """The outermost layer. A request that it refuses is not read further."""

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        limits: Limits,
        metrics: Metrics,
        sizes: Mapping[str, int],
        engaged: Mapping[str, Callable[[], Refusal | None]],
    ) -> None:
        """``sizes``: the bytes that a request to a path may have; to others, next to none. ``engaged``: why nothing can
        be posted to a path now, asked before the request arrives.
        """
        self._app, self._rules, self._limits, self._metrics = app, rules, limits, metrics
        self._sizes, self._engaged = sizes, engaged
        self.waiting, self._waiting_bytes = 0, 0
        metrics.gauge("drcil_waiting", "Requests with images that are answered or wait.", lambda: self.waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._admitted(scope, receive, sent)
        finally:
            # By the pattern of the path, of which there are few, and not by what clients think of.
            endpoint = getattr(scope.get("route"), "path", "other")
            self._metrics.request(endpoint, status, time.perf_counter() - begun)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, method = Headers(scope=scope), scope["method"]
        refusal = self._rules.refusal(method, scope["path"], headers)
        if refusal is None and method == "POST" and self.waiting >= self._limits.waiting:
            refusal = _busy()
        if refusal is None and method == "POST" and scope["path"] in self._engaged:
            refusal = self._engaged[scope["path"]]()
        most = self._sizes.get(scope["path"], MB)
        announced = _announced(headers)
        size = most if announced is None else announced
        if refusal is None and announced is not None and announced > most:
            refusal = _too_large(most)
        if refusal is None and method == "POST" and self._waiting_bytes + size > self._limits.waiting_bytes:
            refusal = _busy()
        if refusal is not None:
            said = JSONResponse({"error": refusal.detail}, refusal.status_code, refusal.headers)
            await said(scope, receive, send)
        elif method != "POST":
            await self._app(scope, receive, send)
        else:
            self.waiting, self._waiting_bytes = self.waiting + 1, self._waiting_bytes + size
            try:
                await self._app(scope, self._bounded(receive, most), send)
            finally:
                self.waiting, self._waiting_bytes = self.waiting - 1, self._waiting_bytes - size

    def _bounded(self, receive: Receive, most: int) -> Receive:
        """The request as it arrives, unless it is too large or too slow, whatever it announced."""
        until = asyncio.get_running_loop().time() + self._limits.upload_seconds
        came, complete = 0, False

        async def bounded() -> Message:
            nonlocal came, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refusal(408, f"the request did not arrive within {self._limits.upload_seconds:g} s") from None
            came += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if came > most:
                raise _too_large(most)
            return message

        return bounded


def _announced(headers: Headers) -> int | None:
    """The bytes that a request says it has; None: it does not say."""
    given = headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else None


def _busy() -> Refusal:
    return Refusal(503, "the server is busy; try again in a moment", _SOON)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"a request of at most {most / MB:g} MB is accepted here", {"Connection": "close"})
