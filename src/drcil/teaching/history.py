"""The history of a model without the names of classes that it has forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from ..models.usage import Change

FORGOTTEN = "(forgotten)"


def without_forgotten(changes: Iterable[Change], classes: Iterable[str]) -> tuple[Change, ...]:
    """The same changes; names count only if they are those of the classes now, or what these were called then."""
    known, told = set(classes), []
    for one in reversed(tuple(changes)):
        renamed = one.what == "rename" and one.classes[-1] in known
        names = tuple(name if name in known or renamed else FORGOTTEN for name in one.classes)
        told.append(one.model_copy(update={"classes": names}))
        # What was called so before is another class.
        if renamed:
            known = known - {one.classes[-1]} | {one.classes[0]}
        elif one.what == "learn":
            known -= {*one.classes}
    return tuple(reversed(told))
