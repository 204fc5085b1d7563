"""Training and test images of a user's own: which classes they must have, and what is set aside where all is one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ...errors import UserError
from ..sources.imageset import ImageSet, by_class

TEST_SHARE = 0.2


def require_common(train: Sequence[str], test: Sequence[str], train_place: str, test_place: str) -> None:
    """Both splits must have the same classes."""
    for here, there, extra in (
        (train_place, test_place, sorted(set(train) - set(test))),
        (test_place, train_place, sorted(set(test) - set(train))),
    ):
        if extra:
            raise UserError(
                f"classes in {here} that are missing in {there}: {some(extra)}; both must have the same classes"
            )


def set_aside(images: ImageSet, classes: Sequence[str], keys: Iterable[bytes]) -> tuple[ImageSet, ImageSet]:
    """Images to learn from and images to test with: those whose hash is in the lowest fifth, but never none or all of
    a class.

    ``keys``: one per image, by which it is on the same side for ever.
    """
    shares = np.fromiter(map(_share, keys), dtype=np.float64, count=len(images))
    chosen = shares < TEST_SHARE
    for name, own in zip(classes, by_class(images.labels, len(classes)), strict=True):
        if len(own) == 1:
            raise UserError(
                f"class '{name}' has a single image, {images.source.name(int(images.rows[own[0]]))}; "
                f"it takes two, one to learn from and one to test with"
            )
        chosen[own[shares[own].argmin()]] = True
        chosen[own[shares[own].argmax()]] = False
    return images.subset(~chosen), images.subset(chosen)


def some(names: Sequence[str], limit: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _share(key: bytes) -> float:
    """A number in [0, 1) that belongs to a key for ever."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64
