"""A place in a store that only the processes of now know, where those of before may have left their traces.

Launchers that start lost processes again may keep the store. What dead processes wrote there, such as where to reach
them, must not be read. So every process greets with a number of its own, and the first one opens a session for
exactly the numbers that greet now.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta
from typing import Any

_GLANCE = 0.05


def open_session(store: Any, rank: int, size: int, patience: timedelta) -> str:
    """The name of a session that all processes have entered; they call this at the same time."""
    end = time.monotonic() + patience.total_seconds()
    own = secrets.token_hex(8)
    store.set(f"drcil/greeting/{rank}", own)
    return _lead(store, size, end) if rank == 0 else _follow(store, rank, own, end)


def _lead(store: Any, size: int, end: float) -> str:
    """Propose sessions until all processes have entered the same."""
    proposed: list[str] = []
    name = ""
    while True:
        greetings = [_read(store, f"drcil/greeting/{rank}") for rank in range(size)]
        if "" not in greetings and greetings != proposed:
            # Someone has come, perhaps in the place of one who is gone.
            proposed, name = greetings, secrets.token_hex(8)
            store.set("drcil/proposal", json.dumps({"name": name, "greetings": greetings}))
        if name and all(_read(store, f"drcil/entered/{name}/{rank}") for rank in range(1, size)):
            store.set(f"drcil/open/{name}", "1")
            return name
        _pause(end)


def _follow(store: Any, rank: int, own: str, end: float) -> str:
    """Enter what is proposed to this very process, until one is open."""
    while True:
        found = _read(store, "drcil/proposal")
        proposal = json.loads(found) if found else {"greetings": []}
        if proposal["greetings"][rank : rank + 1] == [own]:
            name: str = proposal["name"]
            store.set(f"drcil/entered/{name}/{rank}", "1")
            if _read(store, f"drcil/open/{name}"):
                return name
        _pause(end)


def _read(store: Any, key: str) -> str:
    """What an entry says; nothing, where there is none."""
    return store.get(key).decode() if store.check([key]) else ""


def _pause(end: float) -> None:
    if time.monotonic() > end:
        raise RuntimeError("not all of them came")
    time.sleep(_GLANCE)
