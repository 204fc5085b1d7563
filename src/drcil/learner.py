"""Learner: learns task after task, predicts, saves."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Unpack

from .data.augment import build_augment
from .data.image_set import ImageSet, ImageShape
from .data.user_images import class_names
from .errors import UserError, check_callable, check_choice, check_number, check_type, optional
from .inference import Ranking
from .methods import Method
from .methods.dry_run import StageWork, dry_run_next
from .models.calibration import update_usage
from .models.model import Model, check_model_settings, find_initial_weights, idle_settings, new_model
from .models.model_directory import read_model, save_model
from .models.predictor import Prediction, Predictor
from .models.usage import Change
from .models.user_tasks import RefreshImages, refresh_images, user_task
from .nets.net import Readout
from .settings import VALIDATION, EngineSettings, LearnerOptions, ModelSettings
from .streams.memory import Memory
from .streams.stream import Task, require_next
from .train import Listener, SnapshotStore, TrainingEngine, engine_settings, make_inference
from .train.events import Event, silence

_ENGINE_NAMES = {*EngineSettings.model_fields, "threads"}


class Learner:
    """A model and the engine that teaches it, somewhere along a stream of tasks.

    >>> import drcil
    >>> stream = drcil.stream("digits-b0-5")
    >>> learner = drcil.Learner("icarl", epochs_scale=0.05)
    >>> learner.learn(stream[0])
    >>> learner.classes
    ('4', '2')
    """

    def __init__(
        self,
        method: str,
        *,
        listener: Listener = silence,
        journal: SnapshotStore | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        """``options``: the fields of ``drcil.settings.ModelSettings`` and ``EngineSettings``, such as ``memory``,
        ``backbone``, ``epochs_scale``, ``device``. docs/options.md lists them.
        """
        values: dict[str, Any] = {**options}
        engine = engine_settings({name: values.pop(name) for name in options if name in _ENGINE_NAMES})
        settings = ModelSettings.parse({"method": method, **values})
        check_model_settings(settings)
        settings = settings.model_copy(update={"weights": find_initial_weights(settings), "pretrained": False})
        self._set_up(settings, None, engine, listener, journal)

    @classmethod
    def from_model(
        cls,
        model: Model,
        engine: EngineSettings | None = None,
        listener: Listener = silence,
        journal: SnapshotStore | None = None,
    ) -> Learner:
        """The learner that continues with a model."""
        learner = cls.__new__(cls)
        learner._set_up(ModelSettings(method=model.name), model, engine or EngineSettings(), listener, journal)
        return learner

    def _set_up(
        self,
        settings: ModelSettings,
        model: Model | None,
        engine: EngineSettings,
        listener: Listener,
        journal: SnapshotStore | None,
    ) -> None:
        self._settings = settings
        self._engine_settings, self._listener = engine, check_callable("listener", listener)
        self._journal = optional(check_type, "journal", journal, SnapshotStore)
        self._progress: Listener = silence
        self._model = model
        self._predictor: Predictor | None = None
        self._engine: TrainingEngine | None = None
        self._undo: list[Model | None] = []
        """The model before the last change, if that can be undone; None in it: there was no model."""

    def __repr__(self) -> str:
        if self._model is None:
            return f"<Learner {self._settings.method}: nothing learnt yet>"
        tasks, classes = len(self.sizes), len(self.classes)
        return (
            f"<Learner {self._model.name}: {classes} class{'' if classes == 1 else 'es'} in {tasks} "
            f"task{'' if tasks == 1 else 's'}, memory {self._model.memory.budget}, images of {self._model.shape}>"
        )

    @property
    def model(self) -> Model:
        """The current model. Every change replaces it by another object; there is none before the first task."""
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
        """For each learnt task, the number of its classes that are not forgotten."""
        return self._model.sizes if self._model else ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label."""
        return self._model.classes if self._model else ()

    @property
    def engine(self) -> TrainingEngine:
        if self._engine is None:
            self._engine = self._make_engine(self.model)
        return self._engine

    @engine.setter
    def engine(self, engine: TrainingEngine) -> None:
        self._engine = engine

    def _make_engine(self, model: Model) -> TrainingEngine:
        inference = make_inference(self._engine_settings, model.data.mean, model.data.std)
        augment = build_augment(model.augmentation, model.data, model.shape.in_memory)
        return TrainingEngine(self._engine_settings, inference, augment, model.seed, self._journal, self._report)

    def _report(self, event: Event) -> None:
        self._listener(event)
        self._progress(event)

    def _require_learnt(self, what: str) -> None:
        if not self.sizes:
            raise UserError(f"there is nothing to {what} yet: the learner has not learnt a task")

    def learn(self, task: Any, labels: Any = None, *, validation: float = 0.0, progress: bool | None = None) -> None:
        """Learn one task: a ``Task`` of a stream, or images with a class name each, which become the next task.

        Images may be a numpy array (N, H, W[, C]), a tensor (N, C, H, W), or a list of pictures or file paths. A path
        alone is a folder with a directory per class, or a CSV with the columns ``file`` and ``label``. Of these a share
        for ``validation`` is held out of every class that has at least 20: by them accuracy is known, and probabilities
        are calibrated. ``progress``: whether to show how far it is, on standard error; None: on a terminal, unless the
        learner has a listener.
        """
        check_number("validation", validation, VALIDATION)
        if not isinstance(task, Task):
            task = self.user_task(task, labels, validation)
        elif labels is not None or validation:
            what = "labels" if labels is not None else "images for validation"
            raise UserError(f"a task of a stream has {what} of its own; learn takes it without {what}")
        shape = self._model.shape if self._model else task.new.shape
        require_next(task, self.sizes, self.classes, shape)
        started = time.monotonic()
        model = self._model.copy() if self._model else self._new_model(task, shape)
        engine = self._engine or self._make_engine(model)
        with self._show(progress, model, task), engine.task(task.number, task.test, task.validation):
            model.learn(task, engine)
        if task.stream is None:
            change = Change.now("learn", task.classes, len(task.new), time.monotonic() - started)
            update_usage(model, engine.inference, change, task.new, task.validation)
        self._engine = engine
        self._replace(model, can_undo=task.stream is None)

    def refresh(
        self, images: Any, labels: Any = None, *, validation: float = 0.0, progress: bool | None = None
    ) -> None:
        """Learn more images of classes that are known already, in any form that ``learn`` takes.

        The memory chooses its exemplars again among those it has and the new images, and the classifier is balanced on
        it; ``simplecil`` and ``ranpac`` add the images to their sums. What the class was learnt from, or is held out,
        is left out.
        """
        self._require_learnt("refresh")
        self.model.require_refreshable()
        if not isinstance(images, RefreshImages):
            images = self.refresh_images(images, labels, validation)
        if not len(images.train):
            raise UserError("there is nothing to refresh with: the model knows all of these images already")
        started, model, engine = time.monotonic(), self.model.copy(), self.engine
        with self._show(progress, model, None, images), engine.task(len(model.sizes), validation=images.validation):
            model.refresh(images.train, engine)
        change = Change.now("refresh", images.class_names(model.classes), len(images.train), time.monotonic() - started)
        update_usage(model, engine.inference, change, images.train, images.validation)
        self._replace(model)

    def forget(self, classes: str | Sequence[str]) -> None:
        """Remove classes: their rows, exemplars, held-out images, statistics and counts. Other scores do not change.

        Layers that all classes share do not change either.
        """
        self._require_learnt("forget")
        names = list(dict.fromkeys(class_names([classes] if isinstance(classes, str) else classes)))
        started, model = time.monotonic(), self.model.copy()
        model.forget(names)
        if model.usage is not None:
            change = Change.now("forget", names, seconds=time.monotonic() - started)
            update_usage(model, self.engine.inference, change)
        self._replace(model)

    def rename(self, old: str, new: str) -> None:
        """Rename a class; nothing else changes."""
        self._require_learnt("rename")
        model = self.model.copy()
        model.rename(old, new)
        self._replace(model)

    def undo(self) -> None:
        """Return to the model before the last ``learn`` of a user's images, ``refresh``, ``forget`` or ``rename``.

        Only one step can be undone. 'drcil undo' returns to earlier versions of a model on disk.
        """
        if not self._undo:
            raise UserError("there is nothing to undo: a learner goes back one step, to before its last change")
        self._model, self._predictor = self._undo.pop(), None
        if self._model is None:
            self._engine = None  # It was made for the images of the first task.

    def _replace(self, model: Model, can_undo: bool = True) -> None:
        """Make a changed copy the current model. Whatever fails before this leaves the learner unchanged."""
        self._undo = [self._model] if can_undo else []
        self._model, self._predictor = model, None

    def predictor(self) -> Predictor:
        """A predictor of the current model. It needs neither exemplars nor data, and later changes do not affect it."""
        self._require_learnt("predict")
        if self._predictor is None:
            self._predictor = Predictor.from_model(self.model, self.engine.inference)
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
        """Accuracy in percent on an image set (a task's ``test``), or on images with class names."""
        self._require_learnt("evaluate")
        return self.predictor().evaluate(images, labels, readout)

    def save(self, path: str | Path, *, exemplars: Literal["references", "images"] = "references") -> None:
        """Write a model directory with weights, memory and a description. ``drcil.load`` reads it.

        ``exemplars``: for exemplars in files, store their paths, or copies of the images, so that the model can learn
        on another machine. Copies that a model has already are always stored.
        """
        self._require_learnt("save")
        check_choice("exemplars", exemplars, ("references", "images"))
        save_model(self.model, path, copy_exemplars=exemplars == "images")

    def user_task(self, images: Any, labels: Any = None, validation: float = 0.0) -> Task:
        """A user's images as the next task, in any form that ``learn`` takes."""
        seed = self._model.seed if self._model else self._settings.seed
        settings = self._settings.model_copy(update={"seed": seed})
        return user_task(images, labels, self._model, settings, validation)

    def refresh_images(self, images: Any, labels: Any = None, validation: float = 0.0) -> RefreshImages:
        """A user's images of known classes that are new to the model, in any form that ``learn`` takes."""
        return refresh_images(images, labels, self.model, check_number("validation", validation, VALIDATION))

    def forecast(self, task: Task | None, more: RefreshImages | None = None) -> list[StageWork]:
        """The stages that learning a task, and then more images of known classes, will train."""
        model = self._model
        if model is None:
            assert task is not None
            model = new_model(self._settings, task.spec, task.new.shape, task.budget, task.stream)
        return _forecast(model, task, more)

    def planned(self, task: Task | None, more: RefreshImages | None = None) -> list[list[int]]:
        """The work of these stages in image-epochs, by task; finished tasks have none."""
        return _work(self.forecast(task, more), len(self.sizes) - (task is None))

    @contextmanager
    def _show(
        self, progress: bool | None, model: Model, task: Task | None, refresh: RefreshImages | None = None
    ) -> Iterator[None]:
        """Show progress within the block, if it is wanted."""
        is_wanted = self._listener is silence and sys.stderr.isatty()
        if not (is_wanted if progress is None else check_type("progress", progress, bool)):
            yield
            return
        from rich.console import Console

        from .train.progress import showing

        work = _work(_forecast(model, task, refresh), len(self.sizes) - (task is None))
        with showing(Console(stderr=True), work) as self._progress:
            try:
                yield
            finally:
                self._progress = silence

    def _new_model(self, task: Task, shape: ImageShape) -> Model:
        """The model for the first task. Warns if its initial weights do not fit completely."""
        model = new_model(self._settings, task.spec, shape, task.budget, task.stream)
        for sentence in idle_settings(self._settings, model, task.large_base, task.stream):
            raise UserError(f"{sentence}; leave it out")
        for caution in model.method.warnings():
            warnings.warn(caution, stacklevel=3)
        return model


def _forecast(model: Model, task: Task | None, refresh: RefreshImages | None) -> list[StageWork]:
    images = refresh.train if refresh else None
    return dry_run_next(model.method, model.memory, task, images, len(model.classes))


def _work(stages: Sequence[StageWork], finished_tasks: int) -> list[list[int]]:
    return [*([] for _ in range(finished_tasks)), [stage.epochs * stage.images for stage in stages]]


def load_learner(path: str | Path, data_dir: Path | None = None, **engine: Any) -> Learner:
    """A saved learner. It predicts immediately; learning more needs the data that its memory refers to."""
    return Learner.from_model(read_model(path, data_dir), engine_settings(engine))
