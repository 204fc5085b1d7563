"""What a server accepts, and how it says that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from ..data.labels import normal

MB = 10**6
_LONGEST_NAME = 100
"""Characters of the name of a class."""


@dataclass(frozen=True)
class Limits:
    """Everything that a client could give too much of."""

    file_bytes: int = 20 * MB
    pixels: int = 50 * MB
    """Of one image."""
    predict_images: int = 16
    predict_bytes: int = 64 * MB
    """Of one request to predict."""
    teach_images: int = 300
    teach_bytes: int = 300 * MB
    """Of one request to teach or to correct."""
    collected: int = 500
    """Corrected images that are kept."""
    waiting: int = 32
    """Requests with images that are answered or wait at a time."""
    waiting_bytes: int = 1000 * MB
    """Of all of them together."""
    listeners: int = 16
    """Clients that watch the learning."""
    upload_seconds: float = 60.0
    """For a request to arrive."""
    decode_seconds: float = 15.0
    """For one image to be decoded."""


class Refusal(HTTPException):
    """A request that is not carried out: a status, and a sentence that says what would be accepted."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)


def class_label(given: str) -> str:
    """A name for a class: a line of printable text. It is a label only, never part of a path."""
    name = normal(given.strip())
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise Refusal(400, f"the name of a class is one line of 1 to {_LONGEST_NAME} printable characters")
    return name
