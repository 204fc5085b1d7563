"""Whether what was learnt and a stream belong together: the same classes, in the same order."""

from __future__ import annotations

from ..errors import UserError
from ..models.model import Model
from ..streams.stream import Stream


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


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
