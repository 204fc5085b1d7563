"""The class names that a user gives with images: one for each, a string or a whole number."""

from __future__ import annotations

import operator
import unicodedata
from collections.abc import Sequence
from typing import Any

from ..arguments import shown, text
from ..errors import WrongTypeError, WrongValueError

_ACCEPTED = "give a list with one string or whole number for each image"


def class_names(labels: Any, images: int | None = None) -> list[str]:
    """A name for each of so many images, from a list, an array, a tensor or a column of a table.

    None: there may be as many as there are.
    """
    given = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise WrongTypeError(f"class names cannot be read from {shown(labels)}; {_ACCEPTED}")
    if images is not None and (len(given) != images or not images):
        raise WrongValueError(f"every image needs one class name, but {images} images came with {len(given)} names")
    return [class_name(label, place) for place, label in enumerate(given)]


def class_name(label: Any, place: int) -> str:
    """The name of one class; ``place``: of the image that it is given for, to find it by."""
    where = f"the class name of image {place}"
    return normal(text(where, label)) if isinstance(label, str) else str(class_number(label, where))


def normal(name: str) -> str:
    """The one form of a name that can be written in several, such as letters with accents."""
    return unicodedata.normalize("NFC", name)


def one_line(where: str, name: str) -> str:
    """A name that can stand in a line, in its normal form and without spaces around it."""
    if any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in name):
        raise WrongValueError(f"{where} is one line without control characters, not {shown(name)}")
    return normal(name.strip())


def class_number(label: Any, where: str) -> int:
    """The number of one class, whatever kind of whole number it is given as."""
    label = label.item() if getattr(label, "shape", None) == () else label
    try:
        if isinstance(label, bool):
            raise TypeError
        return operator.index(label)
    except TypeError:
        raise WrongTypeError(f"{where} cannot be {shown(label)}; {_ACCEPTED}") from None
