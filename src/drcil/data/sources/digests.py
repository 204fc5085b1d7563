"""Digests of single images: whether an image is still the one that was meant."""

from __future__ import annotations

from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from .imageset import ChainSource, ImageSet, Int64, Source

Digests = npt.NDArray[np.uint8]
LENGTH = 16
"""Bytes of a digest."""
_THREADS = 8

_known: MutableMapping[Source, dict[int, bytes]] = WeakKeyDictionary()
"""By source and row. A source does not change, so an image that is kept from task to task is hashed once."""


def digests(images: ImageSet, embedded: bool = False) -> Digests:
    """The digest of every image, (N, 16).

    Zeros where an image exists nowhere else and so cannot differ, unless those are asked for, too (``embedded``).
    """
    found = np.zeros((len(images), LENGTH), dtype=np.uint8)
    source = images.source
    parts = source.parts if isinstance(source, ChainSource) else (source,)
    part, local = source.locate(images.rows) if isinstance(source, ChainSource) else (images.rows * 0, images.rows)
    for index, own in enumerate(parts):
        here = np.flatnonzero(part == index)
        if len(here) and (embedded or not own.embedded):
            found[here] = _of_rows(own, local[here])
    return found


def require_same(images: ImageSet, expected: Digests, whose: str) -> None:
    """The images must have these digests."""
    differing = np.flatnonzero((digests(images) != expected).any(axis=1))
    if len(differing):
        source, row = images.source, int(images.rows[differing[0]])
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise UserError(
            f"{source.name(row)}{more} is not the image that {whose} remembers: its content has changed; restore it"
        )


def _of_rows(source: Source, rows: Int64) -> Digests:
    known = _known.setdefault(source, {})
    missing = [row for row in rows.tolist() if row not in known]
    if source.in_memory:
        known.update((row, source.digest(row)) for row in missing)
    else:
        with ThreadPoolExecutor(_THREADS) as threads:
            known.update(zip(missing, threads.map(source.digest, missing), strict=True))
    return np.frombuffer(b"".join(known[row][:LENGTH] for row in rows.tolist()), dtype=np.uint8).reshape(-1, LENGTH)
