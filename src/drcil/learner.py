"""The learner: the object a Python user holds. It learns task after task, remembers, predicts and saves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from .data.augment import build_augment
from .data.datasets.dataset import DataSpec
from .data.own import images_from, own_spec
from .data.sources.imageset import ArraySource, ImageSet, ImageShape, Source, copied, empty_like
from .errors import UserError
from .methods import METHODS, Architecture, Method, Settings
from .methods.resolve import resolve_settings
from .nets.build import BACKBONES
from .nets.output import Readout
from .streams.budget import Budget
from .streams.memory import Memory
from .streams.next_task import named_images, next_task, require_next
from .streams.stream import Task
from .train import EngineSettings, FeatureBank, Journal, Listener, Preprocessing, Ranking, TrainingEngine
from .train.events import silence
from .validation import explain

__all__ = ["ImageShape", "Learner", "LearnerOptions", "Prediction"]


@dataclass(frozen=True)
class LearnerOptions:
    """What a learner is made from, besides data. None: what the method's recipe or the kind of data says."""

    method: str
    backbone: str | None = None
    memory: str | None = None
    augment: str | None = None
    seed: int = 0
    epochs_scale: float = 1.0
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Prediction:
    """The best classes for one image, best first, with the readout's scores."""

    classes: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.classes[0]


class Learner:
    """A method, an engine and a memory, somewhere along a stream of tasks.

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
        memory: str | None = None,
        augment: str | None = None,
        seed: int = 0,
        epochs_scale: float = 1.0,
        settings: Mapping[str, Any] | None = None,
        listener: Listener = silence,
        journal: Journal | None = None,
        **engine: Any,
    ) -> None:
        """``engine``: ``device``, ``precision``, ``threads``, ``workers`` and the other engine settings."""
        demanded = METHODS[method].build.memory
        if not 0 < epochs_scale < math.inf:
            raise UserError(f"the epoch scale must be a positive number, not {epochs_scale}")
        if memory is not None and Budget.parse(memory) != Budget.parse(demanded or memory):
            raise UserError(
                f"'{method}' has a memory of '{Budget.parse(demanded or memory)}' by definition, so a memory of "
                f"'{memory}' is not possible; leave it out, or choose another method"
            )
        self.options = LearnerOptions(method, backbone, memory, augment, seed, epochs_scale, settings)
        try:
            self.engine_settings = EngineSettings(**engine)
        except ValidationError as error:
            raise UserError(f"an option of the engine is not usable: {explain(error)}") from None
        self._listener = listener
        self._journal = journal
        self.sizes: tuple[int, ...] = ()
        """Number of classes each learnt task brought."""
        self.classes: tuple[str, ...] = ()
        """Names of the classes learnt, by label."""
        self._started = False

    def start(
        self, spec: DataSpec, shape: ImageShape, budget: Budget, settings: Settings | None = None, classes: int = 1
    ) -> None:
        """Settle what depends on the data: recipe, backbone, normalisation, memory. ``learn`` does so by itself.

        ``classes``: how many are to be learnt in all, as far as is known.
        """
        chosen = METHODS[self.options.method]
        if settings is None:
            settings = resolve_settings(chosen, spec.kind, self.options.settings or {}, self.options.epochs_scale)
        architecture = Architecture(self.options.backbone or spec.backbone, shape.channels)
        BACKBONES[architecture.backbone]
        self.spec, self.shape = spec, shape
        self.method: Method = chosen.build(settings, architecture)
        self._memory = Memory(Budget.parse(chosen.build.memory) if chosen.build.memory else budget)
        self._recall: Callable[[Memory], None] | None = None
        self._require_exemplars(classes)
        augment = build_augment(self.options.augment or spec.augment, spec, shape.in_memory)
        look = Preprocessing(augment, spec.mean, spec.std)
        self.engine = TrainingEngine(self.engine_settings, look, self.options.seed, self._journal, self._listener)
        self._started = True

    def learn(self, task: Any, labels: Sequence[Any] | None = None) -> None:
        """Learn one task: a ``Task`` of a stream, or images with a class name each, which become the next task.

        Images may be a numpy array (N, H, W[, C]), a tensor (N, C, H, W), or a list of pictures or file paths.
        """
        if not isinstance(task, Task):
            if labels is None:
                raise UserError("learn takes a task of a stream, or images and their class names")
            task = self._own_task(task, labels)
        shape = self.shape if self._started else ImageShape.of(task.new.source)
        require_next(task, self.sizes, self.classes, shape)
        if not self._started:
            budget = Budget.parse(self.options.memory) if self.options.memory else task.budget
            self.start(task.spec, shape, budget, classes=task.total)
        self._require_exemplars(task.total)
        kept = self.memory.images
        task = replace(task, memory=empty_like(task.new) if kept is None else kept, budget=self.memory.budget)
        with self._all_or_nothing(), self.engine.task(task.number, task.test, task.validation):
            self.method.learn(task, self.engine)
            net = self.method.herding_net()
            bank = FeatureBank(lambda images: self.engine.features(net, images))
            self.memory.update(task.new, task.total, bank)
            exemplars = self.memory.images or empty_like(task.new)
            self.method.consolidate(exemplars, bank)
            # Otherwise a few exemplars would hold on to every image that was ever given.
            self.memory.images = copied(exemplars, lambda source: isinstance(source, ArraySource) and source.embedded)
        self.sizes = task.sizes
        self.classes = (*self.classes, *task.classes)

    @property
    def memory(self) -> Memory:
        """The exemplars. Those of a loaded model are looked up when they are first asked for: predicting needs none."""
        if not self._started:
            raise UserError("there is no memory yet: the learner has not seen data")
        if self._recall is not None:
            self._recall(self._memory)
            self._recall = None
        return self._memory

    def recall_by(self, recall: Callable[[Memory], None]) -> None:
        """Leave it to ``recall`` to fill the memory, once it is needed."""
        self._recall = recall

    def readouts(self) -> Mapping[str, Readout]:
        self._require_learnt("read")
        return self.method.readouts()

    def rank(self, images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of each image by every readout, as labels."""
        self._require_shape(images)
        return self.engine.rank(self.readouts(), images, best)

    def predict(self, images: Any, top: int = 1, readout: str | None = None) -> list[Prediction]:
        """The ``top`` best class names for each image, by the primary readout or another."""
        self._require_learnt("predict")
        if top < 1:
            raise UserError(f"predict gives the best classes, at least 1 of them, not {top}")
        source = self._source(images)
        rows = np.arange(len(source), dtype=np.int64)
        ranking = self._read(ImageSet(source, rows, np.zeros_like(rows)), readout, top)
        return [
            Prediction(tuple(self.classes[label] for label in labels), tuple(scores))
            for labels, scores in zip(ranking.classes.tolist(), ranking.scores.tolist(), strict=True)
        ]

    def evaluate(self, images: Any, labels: Sequence[Any] | None = None, readout: str | None = None) -> float:
        """Percent of images classified right: of an image set (a task's ``test``), or of images with class names."""
        self._require_learnt("evaluate")
        if not isinstance(images, ImageSet):
            images = named_images(self._source(images), () if labels is None else labels, self.classes)
        if not len(images):
            raise UserError("evaluate needs at least one image")
        best = self._read(images, readout, 1).classes[:, 0].numpy()
        return float((best == images.labels).mean() * 100)

    def save(self, path: str | Path) -> None:
        """Write a model directory: weights, memory and a description. ``drcil.load`` reads it."""
        from .models.model import save_model

        self._require_learnt("save")
        save_model(self, Path(path))

    def _read(self, images: ImageSet, readout: str | None, best: int) -> Ranking:
        self._require_shape(images)
        readouts = self.readouts()
        name = readout or next(iter(readouts))
        if name not in readouts:
            raise UserError(f"method '{self.options.method}' has no readout '{name}'; it has: {', '.join(readouts)}")
        return self.engine.rank({name: readouts[name]}, images, best)[name]

    def _own_task(self, images: Any, names: Sequence[Any]) -> Task:
        """The user's own images as the next task."""
        source = self._source(images) if self._started else images_from(images)
        spec = self.spec if self._started else own_spec(source)
        return next_task(source, names, self.sizes, self.classes, Budget.parse(spec.memory), spec)

    def _source(self, images: Any) -> Source:
        return images_from(images, self.shape.size, self.shape.channels)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A task that is not learnt to its end, for whatever reason, leaves the learner as it was."""
        before = copy.deepcopy(self.method.parts), self.memory.images
        try:
            yield
        except BaseException:
            self.method.parts, self.memory.images = before
            raise

    def _require_exemplars(self, classes: int) -> None:
        budget = self._memory.budget
        if self.method.needs_memory() and budget.quota(classes) == 0:
            raise UserError(
                f"'{self.options.method}' needs an exemplar of every class, but a memory of '{budget}' has none for "
                f"each of {classes} classes; give a memory of at least {classes}"
            )

    def _require_shape(self, images: ImageSet) -> None:
        given = ImageShape.of(images.source)
        if str(given) != str(self.shape):
            raise UserError(f"the images are of {given} (channels, height, width), but the learner knows {self.shape}")

    def _require_learnt(self, what: str) -> None:
        if not self.sizes:
            raise UserError(f"there is nothing to {what} yet: the learner has not learnt a task")
