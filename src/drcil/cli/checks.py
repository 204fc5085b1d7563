"""Checks of options while the command line is read: before anything that takes time is imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar, get_args

import typer

from ..arguments import number, one_of, optional, path, whole
from ..data.datasets.place import expanded
from ..errors import UserError
from ..limits import DEVICES, Bounds, DeviceName, Precision
from ..streams.budget import Budget

T = TypeVar("T")
TOKEN = re.compile("[!-~]{8,200}")


def within(bounds: Bounds) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """Refuses numbers out of bounds."""

    # Typer tells what to hand over by the annotations.
    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        return optional(whole if isinstance(bounds.least, int) else number, named(param), value, bounds)

    return check


def usable(param: typer.CallbackParam, value: T) -> T:
    """Refuses paths that the system does not accept, whatever they are for."""
    for one in value if isinstance(value, list | tuple) else [value]:
        expanded(optional(path, named(param), one) or "")
    return value


def known_device(param: typer.CallbackParam, value: str | None) -> str | None:
    return optional(one_of, named(param), value, get_args(DeviceName))


def known_precision(param: typer.CallbackParam, value: str | None) -> str | None:
    return optional(one_of, named(param), value, get_args(Precision))


def a_budget(value: str | None) -> str | None:
    if value is not None:
        Budget.parse(value)
    return value


def a_number_of_devices(param: typer.CallbackParam, value: str | None) -> str | None:
    """Refuses what is neither a number of devices nor ``auto``."""
    if value is not None and value != "auto" and not (value.isascii() and value.isdecimal() and int(value) in DEVICES):
        raise UserError(f"{named(param)} takes a number {DEVICES}, or auto, not '{value}'")
    return value


def a_token(param: typer.CallbackParam, value: str | None) -> str | None:
    """Refuses tokens that could be guessed, or that a header cannot carry."""
    if value is not None and not TOKEN.fullmatch(value):
        raise UserError(f"{named(param)} takes at least 8 letters, digits and signs of ASCII, without spaces")
    return value


def named(param: typer.CallbackParam) -> str:
    """An option or an argument as users write it."""
    return next((name for name in param.opts if name.startswith("-")), None) or str(param.name).upper()
