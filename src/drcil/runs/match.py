"""Whether a model and a stream belong together."""

from __future__ import annotations

from ..errors import UserError
from ..learner import Learner
from ..streams import Stream


def require_match(learner: Learner, stream: Stream, order_seed: int) -> None:
    """The model must have learnt the stream's first tasks: the same classes, in the same order and portions."""
    strange = [name for name in learner.classes if name not in stream.classes]
    if strange:
        raise UserError(f"the model knows the class '{strange[0]}', which stream '{stream.name}' does not have")
    for label, (name, expected) in enumerate(zip(learner.classes, stream.classes, strict=False)):
        if name != expected:
            raise UserError(
                f"the model learnt its classes in another order than stream '{stream.name}' with order seed "
                f"{order_seed} has them: class {label} is '{name}' in the model and '{expected}' in the stream"
            )
    if learner.sizes != stream.sizes[: len(learner.sizes)]:
        raise UserError(
            f"the model learnt tasks of {_listed(learner.sizes)} classes, "
            f"but stream '{stream.name}' has tasks of {_listed(stream.sizes)}"
        )
    channels = stream.dataset.test.source.channels
    if channels != learner.shape.channels:
        raise UserError(
            f"the model takes images of {learner.shape.channels} channels, but stream '{stream.name}' has {channels}"
        )


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
