"""The exemplars of a model on disk: where they are found again, which they are, and whether they are still the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.datasets.load import find_source
from ..data.sources.description import Chain, Description, Embedded, Kept, leaves
from ..data.sources.digests import LENGTH, digests, require_same
from ..data.sources.files import EncodedSource
from ..data.sources.imageset import ArraySource, ChainSource, ImageSet, ImageShape, Source, copied
from ..data.sources.kept import KeptSource, keep_picture
from ..errors import UserError
from ..streams.memory import exemplars

EXEMPLARS = "exemplars"
"""The directory within a model for the pictures that it carries with it."""


def stored(images: ImageSet, directory: Path, carry: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Where exemplars will be found again; rows, labels and digests, and the pixels of those found nowhere else.

    Pictures that a model carries already are carried on, into the ``directory`` of the one that is written. ``carry``:
    so are all other files, and the pixels of all other images, so that they are found wherever the model is.
    """
    kept = copied(images, lambda source: source.embedded or (carry and not isinstance(source, EncodedSource)))
    kept = _carried(kept, directory / EXEMPLARS, EncodedSource if carry else KeptSource)
    tensors = {
        "rows": torch.from_numpy(kept.rows),
        "labels": torch.from_numpy(kept.labels),
        "digests": torch.from_numpy(digests(kept)),
    }
    parts = kept.source.parts if isinstance(kept.source, ChainSource) else (kept.source,)
    for part in parts:
        if isinstance(part, ArraySource) and part.embedded:
            tensors["pixels"] = part.pixels
    return kept.source.describe(), tensors


def _carried(images: ImageSet, directory: Path, kind: type[EncodedSource]) -> ImageSet:
    """The same images, those in files of this kind of source as copies in the directory."""
    source, rows = images.source, images.rows
    parts = source.parts if isinstance(source, ChainSource) else (source,)
    part, local = source.locate(rows) if isinstance(source, ChainSource) else (np.zeros_like(rows), rows)
    files = [index for index, own in enumerate(parts) if isinstance(own, kind)]
    moved = np.flatnonzero(np.isin(part, files))
    if not len(moved):
        return images
    names = []
    for place in moved:
        own = parts[part[place]]
        assert isinstance(own, EncodedSource)
        names.append(keep_picture(own, int(local[place]), directory))
    different = sorted(set(names))
    copies = KeptSource(directory, different, source.size, own.resize, source.channels)
    carried = ImageSet(copies, np.array([different.index(name) for name in names]), images.labels[moved])
    places = [moved]
    # Part by part: the files that were copied are not to be asked for again.
    for index in set(range(len(parts))) - set(files):
        here = np.flatnonzero(part == index)
        carried = carried.join(ImageSet(parts[index], local[here], images.labels[here]))
        places.append(here)
    return carried.subset(np.argsort(np.concatenate(places), kind="stable"))


def recalled(
    tensors: dict[str, Tensor],
    where: Description,
    shape: ImageShape,
    classes: int,
    at_hand: Source | None,
    data_dir: Path | None,
    directory: Path,
) -> ImageSet:
    """What ``stored`` told of, if it is still there. Rows of what was kept as pixels count in these, never at hand.

    ``directory``: where the model is.
    """
    copies = any(isinstance(part, Embedded) for part in leaves(where))
    _require_forms(tensors, shape, copies)
    rows, labels = tensors["rows"].numpy(), tensors["labels"].numpy()
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"their labels are from {labels.min()} to {labels.max()}, but there are {classes} classes")
    known = (
        not copies and at_hand is not None and at_hand.describe() == where.model_dump(mode="json", exclude_none=True)
    )
    source = at_hand if known and at_hand else _found(where, tensors, data_dir, directory / EXEMPLARS)
    images = exemplars(source, rows, labels)
    require_same(images, tensors["digests"].numpy(), "the model")
    return images


def _require_forms(tensors: dict[str, Tensor], shape: ImageShape, copies: bool) -> None:
    """Each tensor must be of its type and shape, and no other may be there."""
    count = tuple(tensors.get("rows", torch.empty(0)).shape[:1])
    forms: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "rows": (torch.int64, count),
        "labels": (torch.int64, count),
        "digests": (torch.uint8, (*count, LENGTH)),
    }
    if copies:
        pixels = tuple(tensors.get("pixels", torch.empty(0)).shape[:1])
        forms["pixels"] = (torch.uint8, (*pixels, shape.channels, shape.size, shape.size))
    for name in sorted(forms.keys() | tensors.keys()):
        if name not in tensors or name not in forms:
            raise UserError(f"'{name}' is {'missing' if name in forms else 'not expected'}")
        form, given = forms[name], (tensors[name].dtype, tuple(tensors[name].shape))
        if given != form:
            raise UserError(f"'{name}' is {given[0]} of shape {given[1]} instead of {form[0]} of shape {form[1]}")


def _found(where: Description, tensors: dict[str, Tensor], data_dir: Path | None, directory: Path) -> Source:
    """The source that ``stored`` told of; ``directory``: of the pictures that the model carries."""
    if isinstance(where, Embedded):
        return ArraySource(tensors["pixels"])
    if isinstance(where, Kept):
        return KeptSource.in_directory(directory, where)
    if isinstance(where, Chain):
        return ChainSource([_found(part, tensors, data_dir, directory) for part in where.parts])
    return find_source(where, data_dir)
