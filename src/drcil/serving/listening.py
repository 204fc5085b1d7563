"""The socket that a server listens on. It is opened before anything slow is imported or read."""

from __future__ import annotations

import ipaddress
import socket

from ..errors import UserError

_BACKLOG = 128


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens, or a sentence about why it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host '{host}' is no address or name of this machine") from None
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; give another --port or --host"
        ) from None
    return found


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and can be reached from no other."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def address_of(opened: socket.socket, host: str) -> str:
    """What to type into a browser."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{opened.getsockname()[1]}/"
