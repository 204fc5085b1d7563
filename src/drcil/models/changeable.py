"""A model that changes: every change is done to its end or not at all, and the last one can be taken back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..data.labels import class_names
from ..data.sources.imageset import ImageSet
from ..errors import UserError
from .forgetting import forget_classes
from .holder import Holder
from .holding import change, joined, usage_after
from .model import Model
from .naming import rename_class
from .past import Past
from .usage import Kind


class Changeable(Holder):
    """What holds a model and changes it. What a change teaches is up to others."""

    def __init__(self, model: Model | None) -> None:
        super().__init__(model)
        self._past: Past | None = None
        self._undoable = False

    def forget(self, classes: str | Sequence[str]) -> None:
        """Let go of classes: their rows, exemplars, held-out images, statistics and counts. Other scores stay the same.

        Layers that all classes share stay as they are, with what they learnt from images of these classes.
        """
        self._require_learnt("forget")
        names = list(dict.fromkeys(class_names([classes] if isinstance(classes, str) else classes)))
        with self._all_or_nothing():
            started = time.monotonic()
            forget_classes(self.model, names)
            self._predictor = None
            if self.model.usage is not None:
                self._measure(None, None, "forget", names, started)

    def rename(self, old: str, new: str) -> None:
        """Call a class by another name; nothing else changes."""
        self._require_learnt("rename")
        with self._all_or_nothing():
            rename_class(self.model, old, new)
            self._predictor = None

    def undo(self) -> None:
        """Go back to before the last ``learn`` of own images, ``refresh``, ``forget`` or ``rename``; one step.

        'drcil undo' goes back further: between the versions of a model on disk.
        """
        if not self._undoable:
            raise UserError("there is nothing to undo: a learner goes back one step, to before its last change")
        past, self._past, self._undoable = self._past, None, False
        self._be(past)

    def _measure(
        self, learnt: ImageSet | None, held: ImageSet | None, what: Kind, classes: Sequence[str], started: float
    ) -> None:
        """Note what was done, and what the images that are held out say of it."""
        model = self.model
        model.held.images = joined(model.held.images, held)
        done = change(what, classes, len(learnt or ()), time.monotonic() - started)
        model.usage = usage_after(model, self.predictor(), learnt, held, done)
        self._predictor = None

    @contextmanager
    def _all_or_nothing(self, undoable: bool = True) -> Iterator[None]:
        """What is not done to its end, for whatever reason, leaves the model as it was."""
        past = Past(self._model) if self._model else None
        try:
            yield
        except BaseException:
            self._be(past)
            raise
        self._past, self._undoable = past if undoable else None, undoable

    def _be(self, past: Past | None) -> None:
        """Be what it was; None: without a model."""
        self._predictor = None
        if past is not None:
            past.come_back()
            return
        self._model = None
        self._without_model()

    def _without_model(self) -> None:
        """Let go of what was made for a model that is gone."""
