"""What a settings model has to say against its values, in words for people."""

from __future__ import annotations

from pydantic import ValidationError

from .arguments import shown

_OWN_WORDS = {
    "byte_size": "give a size such as '500MB' or '2GB'",
    "byte_size_unit": "give a size such as '500MB' or '2GB'",
    "float_parsing": "input should be a number",
    "int_parsing": "input should be a whole number",
    "tuple_type": "input should be a list such as [1, 2]",
}
"""By kind of error, where pydantic's words are for programmers."""


def explain(error: ValidationError) -> str:
    """The first thing that is wrong: where, the value given, what would be accepted.

    >>> from .stages import Schedule
    >>> try: Schedule(epochs=0, lr=0.1)
    ... except ValidationError as error: print(explain(error))
    'epochs' cannot be 0: input should be greater than or equal to 1
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = _OWN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    reason = reason[:1].lower() + reason[1:]
    if first["type"] == "missing":
        return f"'{where}' is missing"
    if first["type"] == "extra_forbidden":
        return f"'{where}' is not known"
    if isinstance(first["input"], dict | list | tuple):
        return f"'{where}': {reason}" if where else reason
    return f"'{where}' cannot be {shown(first['input'])}: {reason}"
