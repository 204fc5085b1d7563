"""The learner: the object a Python user holds. It learns task after task, remembers, predicts and saves."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .arguments import function, instance, number, optional, text, whole
from .data.augment import build_augment
from .data.sources.imageset import ImageShape
from .errors import UserError
from .inference.inference import Inference
from .limits import EPOCHS_SCALE, IMAGE_SIZE, SEED, VALIDATION
from .methods.rehearsal import StageWork, rehearse_next
from .models.changeable import Changeable
from .models.directory import read_model
from .models.lessons import learn_more, learn_task
from .models.model import Model, ModelOptions, new_model
from .models.own_task import More, more_images, own_task
from .models.start import starting_weights
from .streams.budget import Budget
from .streams.next_task import require_next
from .streams.stream import Task
from .train import EngineSettings, Journal, Listener, TrainingEngine, engine_settings
from .train.events import Event, silence


class Learner(Changeable):
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
        backbone: str | None = None,
        weights: str | os.PathLike[str] | None = None,
        pretrained: bool = False,
        freeze: str | None = None,
        memory: str | int | None = None,
        augment: str | None = None,
        image_size: int | None = None,
        seed: int = 0,
        epochs_scale: float = 1.0,
        schedule: str | None = None,
        settings: Mapping[str, Any] | None = None,
        listener: Listener = silence,
        journal: Journal | None = None,
        **engine: Any,
    ) -> None:
        """``weights``: a file, or a model directory, that the backbone starts from. ``pretrained``: from the weights
        that are published for it.

        ``freeze``: the part of the backbone that stays as it is, with all parts before it (``"backbone"``: all of it).
        ``schedule``: that of all stages that train a backbone, by name, such as ``"fast"``; None: as the recipe says.
        ``image_size``: the pixels of a side to which images that are not of a stream are brought; None: what the first
        of them, or the backbone, asks for.
        ``engine``: ``device``, ``precision``, ``workers`` and the other engine settings.
        """
        options = ModelOptions(
            text("method", method),
            backbone=optional(text, "backbone", backbone),
            memory=None if memory is None else str(Budget.parse(memory)),
            augment=optional(text, "augment", augment),
            seed=whole("seed", seed, SEED),
            epochs_scale=number("epochs_scale", epochs_scale, EPOCHS_SCALE),
            schedule=optional(text, "schedule", schedule),
            settings=optional(instance, "settings", settings, Mapping) or {},
            weights=starting_weights(weights, instance("pretrained", pretrained, bool), backbone),
            freeze=optional(text, "freeze", freeze),
        )
        size = optional(whole, "image_size", image_size, IMAGE_SIZE)
        self._set_up(options, None, engine_settings(engine), listener, journal, size)

    @classmethod
    def of(
        cls,
        model: Model,
        engine: EngineSettings | None = None,
        listener: Listener = silence,
        journal: Journal | None = None,
    ) -> Learner:
        """The learner that continues with a model."""
        learner = cls.__new__(cls)
        learner._set_up(ModelOptions(model.name), model, engine or EngineSettings(), listener, journal)
        return learner

    def _set_up(
        self,
        options: ModelOptions,
        model: Model | None,
        engine: EngineSettings,
        listener: Listener,
        journal: Journal | None,
        image_size: int | None = None,
    ) -> None:
        super().__init__(model)
        self._options, self._image_size = options, image_size
        self._engine_settings, self._listener = engine, function("listener", listener)
        self._journal = optional(instance, "journal", journal, Journal)
        self._screen: Listener = silence

    def __repr__(self) -> str:
        if self._model is None:
            return f"<Learner {self._options.method}: nothing learnt yet>"
        tasks, classes = len(self.sizes), len(self.classes)
        return (
            f"<Learner {self._model.name}: {classes} class{'' if classes == 1 else 'es'} in {tasks} "
            f"task{'' if tasks == 1 else 's'}, memory {self._model.memory.budget}, images of {self._model.shape}>"
        )

    @cached_property
    def engine(self) -> TrainingEngine:
        model = self.model
        augment = build_augment(model.augmentation, model.data, model.shape.in_memory)
        return TrainingEngine(self._engine_settings, self._inference, augment, model.seed, self._journal, self._tell)

    @cached_property
    def _inference(self) -> Inference:
        return self._engine_settings.inference(self.model.data.mean, self.model.data.std)

    def _tell(self, event: Event) -> None:
        self._listener(event)
        self._screen(event)

    def learn(self, task: Any, labels: Any = None, *, validation: float = 0.0, progress: bool | None = None) -> None:
        """Learn one task: a ``Task`` of a stream, or images with a class name each, which become the next task.

        Images may be a numpy array (N, H, W[, C]), a tensor (N, C, H, W), or a list of pictures or file paths. A path
        alone is a folder with a directory per class, or a CSV with the columns ``file`` and ``label``. Of these a share
        for ``validation`` is held out of every class that has at least 20: by them accuracy is known, and probabilities
        are calibrated. ``progress``: whether to show how far it is, on standard error; None: on a terminal, unless the
        learner has a listener.
        """
        number("validation", validation, VALIDATION)
        if not isinstance(task, Task):
            task = self.own_task(task, labels, validation)
        elif labels is not None or validation:
            what = "labels" if labels is not None else "images for validation"
            raise UserError(f"a task of a stream has {what} of its own; learn takes it without {what}")
        shape = self._model.shape if self._model else ImageShape.of(task.new.source)
        require_next(task, self.sizes, self.classes, shape)
        with self._shown(progress, task), self._all_or_nothing(undoable=task.stream is None):
            started, model = time.monotonic(), self._model or self._begin(task, shape)
            with self.engine.task(task.number, task.test, task.validation):
                learn_task(model, task, self.engine)
            self._predictor = None
            if task.stream is None:
                self._measure(task.new, task.validation, "learn", task.classes, started)

    def refresh(
        self, images: Any, labels: Any = None, *, validation: float = 0.0, progress: bool | None = None
    ) -> None:
        """Learn more images of classes that are known already, in any form that ``learn`` takes.

        The memory chooses its exemplars again among those it has and the new images, and the classifier is balanced on
        it; ``simplecil`` and ``ranpac`` add the images to their sums. What the class was learnt from, or is held out,
        is left out.
        """
        self._require_learnt("refresh")
        model = self.model
        model.require_refreshable()
        more = images if isinstance(images, More) else self.more_images(images, labels, validation)
        if not len(more.images):
            raise UserError("there is nothing to refresh with: the model knows all of these images already")
        with self._shown(progress, None, more), self._all_or_nothing():
            started = time.monotonic()
            with self.engine.task(len(model.sizes), validation=more.held):
                learn_more(model, more.images, self.engine)
            self._predictor = None
            self._measure(more.images, more.held, "refresh", more.classes(model.classes), started)

    def own_task(self, images: Any, labels: Any = None, validation: float = 0.0) -> Task:
        """A user's own images as the task to learn next, as ``learn`` takes them."""
        options = replace(self._options, seed=self._model.seed) if self._model else self._options
        return own_task(images, labels, self._model, options, self._image_size, validation)

    def more_images(self, images: Any, labels: Any = None, validation: float = 0.0) -> More:
        """A user's own images of known classes, as ``refresh`` takes them."""
        return more_images(images, labels, self.model, number("validation", validation, VALIDATION))

    def forecast(self, task: Task | None, more: More | None = None) -> list[StageWork]:
        """The stages that learning a task, and then more images of known classes, will train."""
        model = self._model
        if model is None:
            assert task is not None
            shape = ImageShape.of(task.new.source)
            model = new_model(self._options, task.spec, shape, task.budget, task.stream)
        images = more.images if more else None
        return rehearse_next(model.method, model.memory, task, images, len(model.classes))

    def planned(self, task: Task | None, more: More | None = None) -> list[list[int]]:
        """The work of these stages in image-epochs, by task; tasks that are done have none."""
        stages = [stage.epochs * stage.images for stage in self.forecast(task, more)]
        return [*([] for _ in self.sizes[task is None :]), stages]

    @contextmanager
    def _shown(self, progress: bool | None, task: Task | None, more: More | None = None) -> Iterator[None]:
        """Within the block it is shown how far the work is, where that is wanted."""
        quiet = self._listener is not silence or not sys.stderr.isatty()
        if not (not quiet if progress is None else instance("progress", progress, bool)):
            yield
            return
        from rich.console import Console

        from .report.progress import showing

        with showing(Console(stderr=True), self.planned(task, more)) as self._screen:
            try:
                yield
            finally:
                self._screen = silence

    def _begin(self, task: Task, shape: ImageShape) -> Model:
        """The model that learns the first task, with a warning if the weights it starts from do not fit altogether."""
        self._model = new_model(self._options, task.spec, shape, task.budget, task.stream)
        for caution in self._model.method.cautions():
            warnings.warn(caution, stacklevel=3)
        return self._model

    def _without_model(self) -> None:
        for made_for_it in ("engine", "_inference"):
            self.__dict__.pop(made_for_it, None)


def load_learner(path: str | Path, data_dir: Path | None = None, **engine: Any) -> Learner:
    """A learner as it was saved. It predicts at once; to learn on, data its memory refers to must be at hand."""
    return Learner.of(read_model(path, data_dir), engine_settings(engine))
