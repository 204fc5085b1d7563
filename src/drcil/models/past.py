"""What a model was before a change, so that it can be that again."""

from __future__ import annotations

import copy

from .model import Model


class Past:
    """A model as it is now. Its parts are copied; images are only referred to."""

    def __init__(self, model: Model) -> None:
        self._model, self._parts = model, copy.deepcopy(model.method.parts)
        # What keeps images is copied as it is: those that nobody has asked for yet are not looked up for this.
        self._facts = (model.sizes, model.classes, model.usage, copy.copy(model.memory), copy.copy(model.held))

    def come_back(self) -> Model:
        """The model, as it was; once."""
        model = self._model
        model.sizes, model.classes, model.usage, model.memory, model.held = self._facts
        model.method.parts = self._parts
        return model
