"""What a settings model has to say against its values, in words for people."""

from __future__ import annotations

from pydantic import ValidationError


def complaint(error: ValidationError) -> str:
    """The first thing that is wrong: where, the value given, what would be accepted.

    >>> from .stages import Schedule
    >>> try: Schedule(epochs=0, lr=0.1)
    ... except ValidationError as error: print(complaint(error))
    'epochs' cannot be 0: input should be greater than or equal to 1
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if first["type"] == "missing":
        return f"'{where}' is missing"
    if first["type"] == "extra_forbidden":
        return f"'{where}' is not known"
    if isinstance(first["input"], dict):
        return f"'{where}': {reason}" if where else reason
    return f"'{where}' cannot be {first['input']!r}: {reason}"
