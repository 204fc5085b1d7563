"""Whether what was learnt and a stream belong together: the same classes, from the same images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..data.datasets.dataset import Dataset
from ..errors import UserError
from ..models.model import Model
from ..streams.stream import Stream

DATA_DIGEST = "data_digest"
"""Under which name the state of a finished task has the digest of the images that it was learnt from."""


def require_match(model: Model, stream: Stream, order_seed: int) -> None:
    """The model must have learnt the stream's first tasks: the same classes, in the same order and portions."""
    strange = [name for name in model.classes if name not in stream.classes]
    if strange:
        raise UserError(f"the model has the class '{strange[0]}', which is not in stream '{stream.name}'")
    for label, (name, expected) in enumerate(zip(model.classes, stream.classes, strict=False)):
        if name != expected:
            raise UserError(
                f"the model learnt its classes in another order than stream '{stream.name}' with order seed "
                f"{order_seed} has them: class {label} is '{name}' in the model and '{expected}' in the stream"
            )
    if model.sizes != stream.sizes[: len(model.sizes)]:
        raise UserError(
            f"the model learnt tasks of {_listed(model.sizes)} classes, "
            f"but stream '{stream.name}' has tasks of {_listed(stream.sizes)}"
        )
    channels = stream.dataset.test.source.channels
    if channels != model.shape.channels:
        raise UserError(
            f"the model takes images of {model.shape.channels} channels, but stream '{stream.name}' has {channels}"
        )


def data_digest(dataset: Dataset) -> str:
    """Equal for equal datasets, wherever they are: classes, descriptions of the images, their rows and labels."""
    digest = hashlib.blake2b(json.dumps(dataset.classes).encode(), digest_size=16)
    for images in (dataset.train, dataset.test):
        digest.update(json.dumps(_unplaced(images.source.describe()), sort_keys=True).encode())
        for numbers in (images.rows, images.labels):
            digest.update(numbers.tobytes())
    return digest.hexdigest()


def learnt_from(states: Sequence[dict[str, Any]], stream: Stream) -> bool:
    """Whether finished tasks were learnt from the images that the stream has now.

    Where they were learnt before digests were kept, their classes, the number of their images and the description of
    their exemplars must not contradict.
    """
    if not states:
        return True
    known = states[-1].get(DATA_DIGEST)
    if known is not None:
        return bool(known == data_digest(stream.dataset))
    present = [{"classes": list(task.classes), "new_images": len(task.new)} for task in stream[: len(states)]]
    kept = [{name: state.get("task", {}).get(name) for name in ("classes", "new_images")} for state in states]
    where, here = states[-1]["memory"]["source"], stream.dataset.train.source.describe()
    same_exemplars = where is None or where.get("kind") != here["kind"] or _unplaced(where) == _unplaced(here)
    return kept == present and same_exemplars


def _unplaced(description: dict[str, Any]) -> dict[str, Any]:
    """What a source says of its images, but for where they are."""
    return {name: value for name, value in description.items() if name != "root"}


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
