"""The environment of the processes that a server starts."""

from __future__ import annotations

import os

TOKEN = "DRCIL_TOKEN"
"""The variable that may hold the server's token."""


def environment(**more: str) -> dict[str, str]:
    """That of this process and ``more``, without the token: who breaks into a decoder shall not find it there."""
    return {**{name: value for name, value in os.environ.items() if name != TOKEN}, **more}
