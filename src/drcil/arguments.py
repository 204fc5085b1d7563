"""What a caller gives, checked by kind and by bounds: the value in its plain form, or an error of one sentence.

The errors are for people, and a ``TypeError`` or a ``ValueError`` for programs.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from .errors import WrongTypeError, WrongValueError, shortened, unknown
from .limits import Bounds

T = TypeVar("T")


def whole(name: str, value: Any, bounds: Bounds) -> int:
    """A whole number within the bounds.

    >>> whole("seed", 3, Bounds(0, 9))
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except Exception as error:
        # Also of what looks like a number and is none, such as an array of several.
        raise WrongTypeError(f"{name} must be a whole number {bounds}, not {shown(value)}") from error
    return _within(name, found, bounds, "a whole number")


def number(name: str, value: Any, bounds: Bounds) -> float:
    """A number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WrongTypeError(f"{name} must be a number {bounds}, not {shown(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    return _within(name, found, bounds, "a number")


def string(name: str, value: Any) -> str:
    """A string, whatever it says."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be a string, not {shown(value)}")
    return value


def text(name: str, value: Any) -> str:
    """A string that is not empty and can be written to a file."""
    if not string(name, value).strip():
        raise WrongValueError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise WrongValueError(f"{name} {value!a} cannot be encoded; give it in Unicode characters") from None
    return str(value)


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """One of the known names."""
    names = list(known)
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be one of {', '.join(names)}, not {shown(value)}")
    if value not in names:
        raise WrongValueError(str(unknown(name, value, names)))
    return value


def path(name: str, value: Any, any_name: bool = False) -> Path:
    """A path that the system accepts, whether or not there is something; ``any_name``: also one that is not UTF-8."""
    if not isinstance(value, str | os.PathLike):
        raise WrongTypeError(f"{name} must be a path, not {shown(value)}")
    given = os.fspath(value)
    if not isinstance(given, str):
        raise WrongTypeError(f"{name} must be a path of text, not {shown(given)}")
    if not given:
        raise WrongValueError(f"{name} must not be empty")
    try:
        encoded = os.fsencode(given)
        if not any_name:
            encoded.decode()
        os.lstat(given)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except UnicodeError:
        # Not every library that is used could open it.
        raise WrongValueError(f"{name} {given!a} cannot be a path: it is not UTF-8; rename it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WrongValueError(f"{name} '{shortened(given)}' cannot be a path: {reason}") from None
    return Path(given)


def instance(name: str, value: T, kind: type) -> T:
    """An object of this class."""
    if not isinstance(value, kind):
        raise WrongTypeError(f"{name} must be a {kind.__name__}, not {shown(value)}")
    return value


def function(name: str, value: T) -> T:
    """Something that can be called."""
    if not callable(value):
        raise WrongTypeError(f"{name} must be a function, not {shown(value)}")
    return value


def optional(check: Callable[..., T], name: str, value: Any, *more: Any) -> T | None:
    """None, or what the check makes of the value."""
    return None if value is None else check(name, value, *more)


def shown(value: Any) -> str:
    """A value as a sentence names it: numbers and short strings themselves, anything else by its kind."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        try:
            return shortened(repr(value))
        except ValueError:  # A whole number of thousands of digits.
            pass
    article = "an" if type(value).__name__[:1].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _within(name: str, value: T, bounds: Bounds, kind: str) -> T:
    if value not in bounds:
        raise WrongValueError(f"{name} must be {kind} {bounds}, not {shown(value)}")
    return value
