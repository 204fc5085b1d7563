"""Errors that are meant for people: one sentence, what was given, what would be accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 200
"""Characters of something given that a sentence quotes."""


class UserError(Exception):
    """Something the user gave cannot be used. The message is one complete sentence, in one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.splitlines()))


class WrongTypeError(UserError, TypeError):
    """An argument is of a kind that is not accepted."""


class WrongValueError(UserError, ValueError):
    """An argument is of the right kind, but out of bounds."""


class FaultError(UserError):
    """The machine failed: a full disk, a broken one. Nothing that was given is wrong."""


class Interrupted(Exception):
    """The user asked a long job to stop; what was finished is on disk."""


def unknown(kind: str, given: object, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: quote it, propose the nearest, list what exists.

    >>> print(unknown("method", "icrl", ["icarl", "replay"]))
    unknown method 'icrl'; did you mean 'icarl'? Known: icarl, replay
    >>> print(unknown("row", "wa", ["maf, alpha=0.1", "maf, alpha=0.3"]))
    unknown row 'wa'; Known: maf, alpha=0.1; maf, alpha=0.3
    """
    names, name = sorted(known), shortened(str(given))
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    between = "; " if any("," in one for one in names) else ", "
    return UserError(f"unknown {kind} '{name}'; {hint}Known: {between.join(names)}")


def legible(text: str) -> str:
    """The text as it can be written to a file: bytes of a path that are no characters become question marks."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def shortened(text: str, longest: int = _LONGEST) -> str:
    """The text, without its middle where it is too long to be quoted."""
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"
