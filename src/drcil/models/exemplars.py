"""Exemplars on disk: references, digests and copies of their files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..data.dataset import find_source
from ..data.decoding import FILE_LIMIT, ROOM, decode_full, smaller_jpeg
from ..data.file_source import FileList, FileSource, PictureSource
from ..data.image_set import ArraySource, ImageSet, ImageShape, Int64, Source
from ..data.source_refs import ChainRef, EmbeddedRef, KeptRef, LeafRef, SourceRef, leaves
from ..errors import UserError
from ..files import read_bytes, share_file, write_bytes

Digests = npt.NDArray[np.uint8]
LENGTH = 16
"""Bytes of a digest."""
_THREADS = 8

_cache: MutableMapping[Source, dict[int, bytes]] = WeakKeyDictionary()
"""By source and row. A source does not change, so an image that is kept from task to task is hashed once."""


def digests(images: ImageSet, embedded: bool = False) -> Digests:
    """The digest of every image, (N, 16).

    Zeros for images that exist only in the model and so cannot differ, unless ``embedded`` asks for these, too.
    """
    values = np.zeros((len(images), LENGTH), dtype=np.uint8)
    for index, source in enumerate(images.sources):
        here = np.flatnonzero(images.source_index == index)
        if len(here) and (embedded or not source.is_embedded):
            values[here] = _of_rows(source, images.rows[here])
    return values


def require_same(images: ImageSet, expected: Digests, owner: str) -> None:
    """Refuse images with other digests; ``owner`` of the digests, for the message."""
    changed = np.flatnonzero((digests(images) != expected).any(axis=1))
    if len(changed):
        suffix = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        name = images.name(int(changed[0]))
        raise UserError(f"{name}{suffix} is not the image that {owner} remembers: its content has changed; restore it")


def _of_rows(source: Source, rows: Int64) -> Digests:
    cached = _cache.setdefault(source, {})
    missing = [row for row in rows.tolist() if row not in cached]
    if source.in_memory:
        cached.update((row, source.digest(row)) for row in missing)
    else:
        with ThreadPoolExecutor(_THREADS) as threads:
            cached.update(zip(missing, threads.map(source.digest, missing), strict=True))
    return np.frombuffer(b"".join(cached[row][:LENGTH] for row in rows.tolist()), dtype=np.uint8).reshape(-1, LENGTH)


_LARGE = 256 * 2**10
"""Bytes of a file that is copied unchanged. Larger ones are reduced, as far as views do not lose detail."""
_SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}
EXEMPLARS = "exemplars"
"""The directory within a model for the image files in it."""


def kept_files(directory: Path, ref: KeptRef) -> FileSource:
    """The image files in the directory of a model. Sources of the same names have the same images."""
    return FileSource(FileList.of(directory, [("", ref.files)]), ref.size, ref.resize, ref.channels, ref=ref)


def save_exemplar_file(source: PictureSource, row: int, directory: Path) -> str:
    """Copy the file of an image into a directory; returns its name there.

    A file of another model is shared, not copied, where the disk can do that.
    """
    if isinstance(source.ref, KeptRef):
        name = source.ref.files[row]
        share_file(Path(source.name(row)), directory, FILE_LIMIT)
        return name
    with source.picture(row) as picture:
        suffix = _SUFFIXES.get(picture.format or "")
        content = source.file_bytes(row) if suffix else b""
        if not suffix or len(content) > _LARGE:
            suffix, content = "jpg", smaller_jpeg(decode_full(picture, source.mode), ROOM * source.size)
    name = f"{_digest(content)}.{suffix}"
    if not os.path.exists(directory / name):
        write_bytes(directory / name, content)
    return name


def require_kept_picture(path: Path) -> None:
    """Check that the image at a path has the digest in its name."""
    if _digest(read_bytes(path, FILE_LIMIT)) != path.stem:
        raise UserError(f"{path} is damaged: its content does not match its name; restore it")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).digest()[:LENGTH].hex()


def save_exemplars(images: ImageSet, directory: Path, copy_files: bool) -> tuple[SourceRef, dict[str, Tensor]]:
    """A reference to exemplars: rows, labels and digests, and the pixels of those that are stored nowhere else.

    Files that are in a model already are copied into ``directory``. ``copy_files``: so are all other files, and the
    pixels of all other images are stored, so that the model does not depend on other data.
    """
    saved = images.copied_to_memory(lambda source: source.is_embedded or (copy_files and not source.is_encoded))
    saved = _copy_exemplar_files(saved, directory / EXEMPLARS, copy_files)
    starts = _starts(saved.sources)
    tensors = {
        "rows": torch.from_numpy(saved.rows + starts[saved.source_index]),
        "labels": torch.from_numpy(saved.labels),
        "digests": torch.from_numpy(digests(saved)),
    }
    for source in saved.sources:
        if isinstance(source, ArraySource) and source.is_embedded:
            tensors["pixels"] = source.pixels
    refs = tuple(source.ref for source in saved.sources)
    return refs[0] if len(refs) == 1 else ChainRef(parts=refs), tensors


def _starts(sources: Sequence[Source]) -> Int64:
    """The number of the first image of each source, with the images of all sources numbered in order, and the end."""
    return np.cumsum([0, *map(len, sources)], dtype=np.int64)


def _copy_exemplar_files(images: ImageSet, directory: Path, copy_files: bool) -> ImageSet:
    """The same images, with files copied into the directory: those of models, or of all sources (``copy_files``)."""
    views: dict[tuple[int, int], list[int]] = {}
    for index, source in enumerate(images.sources):
        if isinstance(source, PictureSource) and source.is_encoded and (copy_files or isinstance(source.ref, KeptRef)):
            views.setdefault((source.size, source.resize), []).append(index)
    if not views:
        return images
    sources: list[Source] = []
    source_index, rows = images.source_index.copy(), images.rows.copy()
    for (size, resize), indices in views.items():
        positions = np.flatnonzero(np.isin(images.source_index, indices))
        names = [_save_image(images, position, directory) for position in positions.tolist()]
        files = tuple(sorted(set(names)))
        row_of = {name: row for row, name in enumerate(files)}
        rows[positions] = [row_of[name] for name in names]
        source_index[positions] = len(sources)
        ref = KeptRef(size=size, resize=resize, channels=1 if images.shape.channels == 1 else 3, files=files)
        sources.append(kept_files(directory, ref))
    copied = {index for indices in views.values() for index in indices}
    for index, source in enumerate(images.sources):
        if index not in copied:
            source_index[images.source_index == index] = len(sources)
            sources.append(source)
    return ImageSet(tuple(sources), source_index, rows, images.labels)


def _save_image(images: ImageSet, position: int, directory: Path) -> str:
    source = images.sources[images.source_index[position]]
    assert isinstance(source, PictureSource)
    return save_exemplar_file(source, int(images.rows[position]), directory)


def load_exemplars(
    tensors: dict[str, Tensor],
    ref: SourceRef,
    shape: ImageShape,
    classes: int,
    at_hand: Source | None,
    data_dir: Path | None,
    directory: Path,
) -> ImageSet:
    """The images that ``save_exemplars`` saved, if they still exist.

    ``at_hand``: a source that is loaded already. ``directory``: of the model.
    """
    copies = any(isinstance(part, EmbeddedRef) for part in leaves(ref))
    _require_forms(tensors, shape, copies)
    rows, labels = tensors["rows"].numpy(), tensors["labels"].numpy()
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"their labels are from {labels.min()} to {labels.max()}, but there are {classes} classes")
    if (np.diff(labels) < 0).any():
        raise UserError("they are not sorted by label")
    sources = tuple(_find_source(part, tensors, at_hand, data_dir, directory / EXEMPLARS) for part in leaves(ref))
    starts = _starts(sources)
    if len(rows) and not 0 <= rows.min() <= rows.max() < starts[-1]:
        raise UserError(
            f"the memory refers to images {rows.min()} to {rows.max()}, but the data has {starts[-1]} images: "
            "it is not the data this memory was made from"
        )
    source_index = np.searchsorted(starts, rows, side="right") - 1
    images = ImageSet(sources, source_index, rows - starts[source_index], labels)
    require_same(images, tensors["digests"].numpy(), "the model")
    return images


def _require_forms(tensors: dict[str, Tensor], shape: ImageShape, copies: bool) -> None:
    """Check that exactly these tensors exist, with their types and shapes."""
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
        form, actual = forms[name], (tensors[name].dtype, tuple(tensors[name].shape))
        if actual != form:
            raise UserError(f"'{name}' is {actual[0]} of shape {actual[1]} instead of {form[0]} of shape {form[1]}")


def _find_source(
    ref: LeafRef, tensors: dict[str, Tensor], at_hand: Source | None, data_dir: Path | None, directory: Path
) -> Source:
    """The source of a reference; ``directory``: of the files in the model."""
    if isinstance(ref, EmbeddedRef):
        return ArraySource(tensors["pixels"])
    if at_hand is not None and at_hand.ref == ref:
        return at_hand
    return kept_files(directory, ref) if isinstance(ref, KeptRef) else find_source(ref, data_dir)
