"""A learner as an estimator of scikit-learn: ``fit``, ``partial_fit``, ``predict``, ``predict_proba``, ``score``."""
# ruff: noqa: N803 (scikit-learn calls images X)

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from .errors import WrongTypeError, WrongValueError
from .learner import Learner
from .models.model import Model
from .settings import ModelSettings
from .train import engine_settings

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "drcil.sklearn needs scikit-learn of version 1.6 or later; install it with pip install 'drcil[sklearn]'"
    ) from error

Pixels = npt.NDArray[np.uint8]
_SMALLEST = 8
"""Pixels of a side of a padded image, at least."""
_OTHER_NAMES = ("method", "seed")
"""Settings of a model that the estimator takes as ``method`` and ``random_state``."""


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An image classifier that learns classes incrementally: every ``partial_fit`` with new ones is a task.

    Images are arrays (N, H, W) or (N, H, W, C), or rows of H·W·C values each, as scikit-learn likes them.

    ``image_shape``: of rows, (H, W) or (H, W, C); None: they are grey squares. ``"pad"`` fills rows of any length up
    with zeros to a square, for tables that are no images.
    ``pixel_range``: the values of black and white; values beyond are cut off. None: 0 and 255 for bytes; 0 and 1 for
    floats between them; else the least and the largest value in the first images.
    ``validation``: the share of every class of at least 20 images that is held out to calibrate probabilities.
    ``engine``: ``device``, ``precision``, ``workers`` and the other engine settings.
    All others are those of `drcil.Learner`; ``random_state`` is its ``seed``, and None draws one.

    After learning, ``classes_`` are the labels in sorted order, and ``learner_`` is the learner, which can be saved.
    """

    learner_: Learner
    classes_: npt.NDArray[Any]
    image_shape_: tuple[int, ...]
    pixel_range_: tuple[float, float]
    _labels: list[Any]
    """Labels in the learner's order of classes."""

    def __init__(
        self,
        method: str = "mafdrc",
        *,
        memory: str | int | None = None,
        backbone: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        pretrained: bool = False,
        freeze: str | None = None,
        augment: str | None = None,
        epochs_scale: float = 1.0,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        schedule: str | None = None,
        settings: Mapping[str, Any] | None = None,
        image_shape: Sequence[int] | Literal["pad"] | None = None,
        image_size: int | None = None,
        pixel_range: tuple[float, float] | None = None,
        validation: float = 0.0,
        engine: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.memory = memory
        self.backbone = backbone
        self.weights = weights
        self.pretrained = pretrained
        self.freeze = freeze
        self.augment = augment
        self.epochs_scale = epochs_scale
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.schedule = schedule
        self.settings = settings
        self.image_shape = image_shape
        self.image_size = image_size
        self.pixel_range = pixel_range
        self.validation = validation
        self.engine = engine
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn all classes as one task, from the beginning."""
        return self._learn(X, y, reset=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the new classes of these images as the next task, and more of those that are known already.

        ``classes``: if given, those that may come; scikit-learn's own programs give them.
        """
        return self._learn(X, y, not hasattr(self, "learner_"), classes)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable label of each image."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probability of every class of ``classes_`` for each image."""
        check_is_fitted(self, "learner_")
        rows, shape = self._rows(X, reset=False)
        probabilities = self.learner_.predictor().probabilities(self._pixels(rows, shape)).astype(np.float64)
        columns = [self._labels.index(label) for label in self.classes_.tolist()]
        ordered: npt.NDArray[np.float64] = probabilities[:, columns] / probabilities.sum(axis=1, keepdims=True)
        return ordered

    def _learn(self, X: Any, y: Any, reset: bool, classes: Any = None) -> Self:
        before = dict(vars(self))
        try:
            return self._learn_task(X, y, reset, classes)
        except BaseException:
            if reset:  # Later tasks change only the learner, which restores its state if it fails.
                self.__dict__ = before
            raise

    def _learn_task(self, X: Any, y: Any, reset: bool, classes: Any) -> Self:
        if y is None:
            raise WrongValueError("images need labels: requires y to be passed, but the target y is None")
        (rows, labels), shape = self._rows(X, reset, y)
        check_classification_targets(labels)
        unique_labels = np.unique(labels)
        learnt = np.array([]) if reset else np.array(self._labels, dtype=self.classes_.dtype)
        if classes is not None and not np.isin(unique_labels, classes).all():
            unexpected = unique_labels[~np.isin(unique_labels, classes)]
            raise WrongValueError(f"label '{unexpected[0]}' is not among the classes that were given")
        if len(learnt) and isinstance(learnt.tolist()[0], str) != isinstance(unique_labels.tolist()[0], str):
            raise WrongTypeError(
                f"label '{unique_labels[0]}' ({unique_labels.dtype}) does not go with those known ({learnt.dtype})"
            )
        if reset:
            self.image_shape_, self.pixel_range_ = shape, self._range(rows)
        learner = self._learner() if reset else self.learner_
        is_learnt = np.isin(labels, learnt)
        if is_learnt.any():
            learner.model.require_refreshable()
        pixels = self._pixels(rows, shape)
        if not is_learnt.all():
            learner.learn(pixels[~is_learnt], list(map(str, labels[~is_learnt].tolist())), validation=self.validation)
            self.learner_ = learner
            names = {str(label): label for label in unique_labels.tolist()}
            self._labels = [*learnt.tolist(), *(names[name] for name in learner.classes[len(learnt) :])]
            dtype = np.result_type(unique_labels, learnt) if len(learnt) else None
            self.classes_ = np.unique(np.array(self._labels, dtype=dtype))
        if is_learnt.any():
            self._refresh(pixels[is_learnt], labels[is_learnt])
        return self

    def _refresh(self, pixels: Pixels, labels: npt.NDArray[Any]) -> None:
        """Learn more images of known classes, without those learnt before."""
        names = [self.learner_.classes[self._labels.index(label)] for label in labels.tolist()]
        refresh = self.learner_.refresh_images(pixels, names, self.validation)
        if len(refresh.train):
            self.learner_.refresh(refresh)

    def _learner(self) -> Learner:
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        options: Any = {name: getattr(self, name) for name in ModelSettings.model_fields if name not in _OTHER_NAMES}
        return Learner(self.method, seed=seed, **options, **(self.engine or {}))

    def _rows(self, X: Any, reset: bool, y: Any = None) -> tuple[Any, tuple[int, ...]]:
        """Images as rows validated by scikit-learn, with labels if ``y`` is set; and the image shape."""
        array, shape = X, None
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4):
            images = np.asarray(X)
            array, shape = images.reshape(len(images), -1), images.shape[1:]
        validated = validate_data(self, array, reset=reset) if y is None else validate_data(self, array, y, reset=reset)
        if not reset and shape not in (None, self.image_shape_):
            raise WrongValueError(f"the images are of shape {shape}, but those learnt were of {self.image_shape_}")
        return validated, (shape or self._shape()) if reset else self.image_shape_

    def _shape(self) -> tuple[int, ...]:
        """The image shape for flat rows."""
        values = self.n_features_in_
        side = math.isqrt(values)
        if isinstance(self.image_shape, str) and self.image_shape == "pad":
            side = max(_SMALLEST, math.isqrt(values - 1) + 1)
            return side, side
        if self.image_shape is None:
            if side**2 != values:
                raise WrongValueError(
                    f"rows of {values} values are no square images; give image_shape=(height, width) or "
                    "(height, width, channels)"
                )
            return side, side
        shape = tuple(self.image_shape)
        if len(shape) not in (2, 3) or math.prod(shape) != values:
            raise WrongValueError(f"image_shape={shape} does not fit rows of {values} values")
        return shape

    def _range(self, rows: npt.NDArray[Any]) -> tuple[float, float]:
        """The values of black and white."""
        if self.pixel_range is not None:
            black, white = map(float, self.pixel_range)
            if not black < white:
                raise WrongValueError(f"pixel_range={self.pixel_range} must have black below white")
            return black, white
        if rows.dtype == np.uint8:
            return 0.0, 255.0
        least, most = float(rows.min()), float(rows.max())
        if rows.dtype.kind in "fb" and least >= 0 and most <= 1:
            return 0.0, 1.0
        return least, most if most > least else least + 1

    def _pixels(self, rows: npt.NDArray[Any], shape: tuple[int, ...]) -> Pixels:
        """The images as bytes."""
        black, white = self.pixel_range_
        scaled = (rows.astype(np.float64) - black) * (255 / (white - black))
        pixels: Pixels = np.rint(scaled.clip(0, 255)).astype(np.uint8)
        missing = math.prod(shape) - pixels.shape[1]
        return np.pad(pixels, ((0, 0), (0, missing))).reshape(-1, *shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the learner's model only: an engine belongs to a process."""
        state = dict(super().__getstate__())
        return {**state, "learner_": state["learner_"].model} if "learner_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state.get("learner_"), Model):
            engine = engine_settings(state["engine"] or {})
            state = {**state, "learner_": Learner.from_model(state["learner_"], engine)}
        super().__setstate__(state)
