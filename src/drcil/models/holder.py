"""What holds a model: it says what the model knows, and answers with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..arguments import one_of
from ..data.sources.imageset import ImageSet
from ..errors import UserError
from ..inference.inference import Inference
from ..inference.ranking import Ranking
from ..methods import Method
from ..nets.output import Readout
from ..streams.memory import Memory
from .directory import save_model
from .model import Model
from .predictor import Prediction, Predictor


class Holder(ABC):
    """A model, or the place of one that is still to come."""

    def __init__(self, model: Model | None) -> None:
        self._model = model
        self._predictor: Predictor | None = None

    @property
    @abstractmethod
    def _inference(self) -> Inference:
        """How images go through the model's nets."""

    @property
    def model(self) -> Model:
        """What is being taught; the first task settles what it is made of."""
        if self._model is None:
            raise UserError("there is no model yet: the learner has not seen data")
        return self._model

    @property
    def method(self) -> Method:
        return self.model.method

    @property
    def memory(self) -> Memory:
        """The exemplars."""
        return self.model.memory

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes that each learnt task brought and that are still there."""
        return self._model.sizes if self._model else ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learnt, by label."""
        return self._model.classes if self._model else ()

    def predictor(self) -> Predictor:
        """What the learner knows now, ready for use by itself: without exemplars, data or the engine."""
        self._require_learnt("predict")
        if self._predictor is None:
            self._predictor = Predictor.of(self.model, self._inference)
        return self._predictor

    def readouts(self) -> Mapping[str, Readout]:
        """The ways to read class scores, the leading one first."""
        self._require_learnt("read")
        return self.model.readouts()

    def rank(self, images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of each image by every readout, as labels."""
        return self.predictor().rank(images, best)

    def predict(self, images: Any, top: int = 1, readout: str | None = None) -> list[Prediction]:
        """The ``top`` best class names for each image, by the leading readout or another."""
        return self.predictor().predict(images, top, readout)

    def evaluate(self, images: Any, labels: Any = None, readout: str | None = None) -> float:
        """Percent of images classified right: of an image set (a task's ``test``), or of images with class names."""
        self._require_learnt("evaluate")
        return self.predictor().evaluate(images, labels, readout)

    def save(self, path: str | Path, *, exemplars: Literal["references", "images"] = "references") -> None:
        """Write a model directory: weights, memory and a description. ``drcil.load`` reads it.

        ``exemplars``: of those in files keep the paths, or the images, with which the model can learn on anywhere.
        Images that a model carries already are always carried on.
        """
        self._require_learnt("save")
        one_of("exemplars", exemplars, ("references", "images"))
        save_model(self.model, path, carry=exemplars == "images")

    def _require_learnt(self, what: str) -> None:
        if not self.sizes:
            raise UserError(f"there is nothing to {what} yet: the learner has not learnt a task")
