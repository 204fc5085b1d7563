"""Who may ask for what: the names a server answers to, the sites that may post to it, and its token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from .limits import Refusal

OPEN = {"/health", "/docs", "/openapi.json"}
"""What is answered without the token, besides the page and its files: they tell nothing about images."""
_CHANGING = {"POST", "DELETE"}


@dataclass(frozen=True)
class Rules:
    """``host``: as it was given; names that only resolve to this machine are not its own.

    A site whose name is made to lead here (DNS rebinding) is thereby refused: its name is neither an address nor known.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    teach: bool = False
    collect: bool = True
    """Whether corrected images may be kept."""
    files: frozenset[str] = frozenset()
    """The page and its files."""
    names: frozenset[str] = frozenset()
    """Other names that it is reached by, such as that of a proxy."""

    def refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """Why a request is not carried out; None if it is."""
        if not self._is_own(headers.get("host", "")):
            return Refusal(421, "this server is reached by its address or its own name only; --name gives it another")
        if method in _CHANGING and not _from_here(headers):
            return Refusal(403, "requests from pages of other sites are refused")
        if self.token is not None and path not in OPEN | self.files and not self._has_token(headers):
            challenge = {"WWW-Authenticate": "Bearer"}
            return Refusal(401, "this server wants its token: 'Authorization: Bearer TOKEN'", challenge)
        return None

    def _is_own(self, given: str) -> bool:
        name = _host(given)
        if name is None:
            return False
        machine = socket.gethostname().lower()
        own = {"localhost", self.host.lower(), machine, f"{machine}.local", *map(str.lower, self.names)}
        return _is_address(name) or name in own

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Digests are of one length, so that the time it takes tells nothing about that of the token.
        digests = [hashlib.sha256(text.strip().encode()).digest() for text in (given, self.token or "")]
        return scheme.lower() == "bearer" and hmac.compare_digest(*digests)


def _from_here(headers: Headers) -> bool:
    """Programs say nothing of where they come from; browsers do."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _host(given: str) -> str | None:
    """The name without its port."""
    try:
        return urlsplit(f"//{given}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
