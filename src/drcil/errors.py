"""Exceptions with one-sentence messages, and checks of arguments that are not settings.

The errors are for people, and a ``TypeError`` or a ``ValueError`` for programs.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_LONGEST = 200
"""Characters of a value that a message quotes at most."""


class UserError(Exception):
    """A mistake of the user. The message is one complete sentence on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.splitlines()))


class WrongTypeError(UserError, TypeError):
    """An argument has the wrong type."""


class WrongValueError(UserError, ValueError):
    """An argument has the right type, but its value is not accepted."""


class FaultError(UserError):
    """The machine failed, for example because a disk is full or broken. The input is not wrong."""


class Interrupted(Exception):
    """The user asked a long job to stop; what was finished is on disk."""


def unknown_name(kind: str, value: object, choices: Iterable[str], nearest: int | None = None) -> UserError:
    """The error for a misspelt name: quote it, suggest the nearest, list the known names.

    ``nearest``: list only this many names, the most similar ones.

    >>> print(unknown_name("method", "icrl", ["icarl", "replay"]))
    unknown method 'icrl'; did you mean 'icarl'? Known: icarl, replay
    >>> print(unknown_name("row", "wa", ["maf, alpha=0.1", "maf, alpha=0.3"]))
    unknown row 'wa'; known: maf, alpha=0.1; maf, alpha=0.3
    """
    names, name = sorted(choices), shortened(str(value))
    matches = difflib.get_close_matches(name, names, n=1)
    heading = "known" if nearest is None else "nearest"
    if matches:
        heading = f"did you mean '{matches[0]}'? {heading.capitalize()}"
    separator = "; " if any("," in choice for choice in names) else ", "
    listed = names if nearest is None else difflib.get_close_matches(name, names, n=nearest, cutoff=0.0)
    return UserError(f"unknown {kind} '{name}'; {heading}: {separator.join(listed)}")


def printable(text: str) -> str:
    """The text with undecodable bytes of a path replaced, so that it can be written to a file."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def shortened(text: str, longest: int = _LONGEST) -> str:
    """The text; if it is too long to quote, without its middle."""
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"


T = TypeVar("T")


def check_int(name: str, value: Any, bounds: Bounds) -> int:
    """A whole number within the bounds.

    >>> check_int("seed", 3, Bounds(0, 9))
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except Exception as error:
        # Objects such as arrays may raise anything when they are converted.
        raise WrongTypeError(f"{name} must be a whole number {bounds}, not {format_value(value)}") from error
    return _within(name, number, bounds, "a whole number")


def check_number(name: str, value: Any, bounds: Bounds) -> float:
    """A number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WrongTypeError(f"{name} must be a number {bounds}, not {format_value(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return _within(name, number, bounds, "a number")


def check_string(name: str, value: Any) -> str:
    """Any string."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be a string, not {format_value(value)}")
    return value


def check_text(name: str, value: Any) -> str:
    """A string that is not empty and can be written to a file."""
    if not check_string(name, value).strip():
        raise WrongValueError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongValueError(f"{name} {value!a} cannot be encoded; give it in Unicode characters") from None
    return str(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of the known names."""
    names = list(choices)
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be one of {', '.join(names)}, not {format_value(value)}")
    if value not in names:
        raise WrongValueError(str(unknown_name(name, value, names)))
    return value


def check_path(name: str, value: Any, any_name: bool = False) -> Path:
    """A path that the system accepts, existing or not; ``any_name``: also one that is not UTF-8."""
    if not isinstance(value, str | os.PathLike):
        raise WrongTypeError(f"{name} must be a path, not {format_value(value)}")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise WrongTypeError(f"{name} must be a path of text, not {format_value(path)}")
    if not path:
        raise WrongValueError(f"{name} must not be empty")
    try:
        encoded = os.fsencode(path)
        if not any_name:
            encoded.decode()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except UnicodeError:
        # Some libraries could not open it.
        raise WrongValueError(f"{name} {path!a} cannot be a path: it is not UTF-8; rename it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WrongValueError(f"{name} '{shortened(path)}' cannot be a path: {reason}") from None
    return Path(path)


def check_type(name: str, value: T, kind: type) -> T:
    """An object of this class."""
    if not isinstance(value, kind):
        raise WrongTypeError(f"{name} must be a {kind.__name__}, not {format_value(value)}")
    return value


def check_callable(name: str, value: T) -> T:
    """Something that can be called."""
    if not callable(value):
        raise WrongTypeError(f"{name} must be a function, not {format_value(value)}")
    return value


def optional(check: Callable[..., T], name: str, value: Any, *arguments: Any) -> T | None:
    """None, or the checked value."""
    return None if value is None else check(name, value, *arguments)


def format_value(value: Any) -> str:
    """A value as messages show it: numbers and strings themselves, anything else by its type."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        try:
            return shortened(repr(value))
        except ValueError:  # Python refuses to print integers with thousands of digits.
            pass
    article = "an" if type(value).__name__[:1].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _within(name: str, value: T, bounds: Bounds, kind: str) -> T:
    if value not in bounds:
        raise WrongValueError(f"{name} must be {kind} {bounds}, not {format_value(value)}")
    return value


class Bounds(NamedTuple):
    """The numbers from ``least`` to ``most``; integers if both are."""

    least: float
    most: float
    open_below: bool = False
    """Whether ``least`` itself is too small."""
    open_above: bool = False
    """Whether ``most`` itself is too large."""

    def __contains__(self, value: object) -> bool:
        """Whether a number lies within; NaN does not."""
        if not isinstance(value, int | float):
            return False
        above = value > self.least if self.open_below else value >= self.least
        return above and (value < self.most if self.open_above else value <= self.most)

    def __str__(self) -> str:
        """
        >>> print(Bounds(1, 8)), print(Bounds(0.0, 1.0, open_below=True, open_above=True))
        from 1 to 8
        above 0 and below 1
        (None, None)
        """
        if not (self.open_below or self.open_above):
            return f"from {self.least} to {self.most}"
        low = f"above {self.least:g}" if self.open_below else f"at least {self.least:g}"
        return f"{low} and below {self.most:g}" if self.open_above else f"{low} and at most {self.most:g}"
