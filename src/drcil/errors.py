"""Errors that are meant for people: one sentence, what was given, what would be accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user gave cannot be used. The message is one complete sentence."""


class Interrupted(Exception):
    """The user asked a long job to stop; what was finished is on disk."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: quote it, propose the nearest, list what exists.

    >>> print(unknown("method", "icrl", ["icarl", "replay"]))
    unknown method 'icrl'; did you mean 'icarl'? Known: icarl, replay
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{given}'; {hint}Known: {', '.join(names)}")
