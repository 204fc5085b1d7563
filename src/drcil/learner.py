"""The learner: the object a Python user holds. It learns task after task, remembers, predicts and saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from .data.augment import build_augment
from .data.dataset import DataSpec
from .data.imageset import ImageSet, Source, empty_like
from .data.own import images_from, own_spec
from .errors import UserError
from .memory import Budget, Memory
from .methods import METHODS, Architecture, Method, Settings
from .methods.settings import resolve_settings
from .stages import Readout
from .streams import Task
from .train import Engine, EngineSettings, FeatureBank, Journal, Listener, Look, Ranking
from .train.events import silence


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
class ImageShape:
    """The images a learner is made for: channels, height and width in pixels, and whether they live in memory."""

    channels: int
    size: int
    in_memory: bool

    @classmethod
    def of(cls, source: Source) -> ImageShape:
        return cls(source.channels, source.size, source.in_memory)


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
    ('5', '3')
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
        METHODS[method]
        if not epochs_scale > 0:
            raise UserError(f"the epoch scale must be positive, not {epochs_scale}")
        self.options = LearnerOptions(method, backbone, memory, augment, seed, epochs_scale, settings)
        try:
            self.engine_settings = EngineSettings(**engine)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"engine setting '{'.'.join(map(str, first['loc']))}': {first['msg']}") from None
        self._listener = listener
        self._journal = journal
        self.sizes: tuple[int, ...] = ()
        """Number of classes each learnt task brought."""
        self.classes: tuple[str, ...] = ()
        """Names of the classes learnt, by label."""
        self._started = False

    def start(self, spec: DataSpec, shape: ImageShape, budget: Budget, settings: Settings | None = None) -> None:
        """Settle what depends on the data: recipe, backbone, normalisation, memory. ``learn`` does so by itself."""
        chosen = METHODS[self.options.method]
        if settings is None:
            settings = resolve_settings(chosen, spec.kind, self.options.settings or {}, self.options.epochs_scale)
        architecture = Architecture(self.options.backbone or spec.backbone, shape.channels)
        self.spec, self.shape = spec, shape
        self.method: Method = chosen.build(settings, architecture)
        self.memory = Memory(Budget.parse(chosen.build.memory) if chosen.build.memory else budget)
        augment = build_augment(self.options.augment or spec.augment, spec, shape.in_memory)
        look = Look(augment, spec.mean, spec.std)
        self.engine = Engine(self.engine_settings, look, self.options.seed, self._journal, self._listener)
        self._started = True

    def learn(self, task: Any, labels: Sequence[str] | None = None) -> None:
        """Learn one task: a ``Task`` of a stream, or images with a class name each, which become the next task.

        Images may be a numpy array (N, H, W[, C]), a tensor (N, C, H, W), or a list of pictures or file paths.
        """
        if not isinstance(task, Task):
            if labels is None:
                raise UserError("learn takes a task of a stream, or images and their class names")
            task = self._own_task(task, labels)
        elif not self._started:
            budget = Budget.parse(self.options.memory) if self.options.memory else task.budget
            self.start(task.spec, ImageShape.of(task.new.source), budget)
        if task.number != len(self.sizes) + 1:
            raise UserError(f"the next task to learn is number {len(self.sizes) + 1}, not {task.number}")
        again = sorted(set(task.classes) & set(self.classes))
        if again:
            raise UserError(f"class '{again[0]}' has already been learnt; a task brings classes that are new")
        kept = self.memory.images
        task = replace(task, memory=empty_like(task.new) if kept is None else kept, budget=self.memory.budget)
        with self.engine.task(task.number, task.test):
            self.method.learn(task, self.engine)
            net = self.method.herding_net()
            bank = FeatureBank(lambda images: self.engine.features(net, images))
            self.memory.update(task.new, task.total, bank)
            self.method.consolidate(self.memory.images or empty_like(task.new), bank)
        self.sizes = task.sizes
        self.classes = (*self.classes, *task.classes)

    def readouts(self) -> Mapping[str, Readout]:
        self._require_started("read")
        return self.method.readouts()

    def rank(self, images: ImageSet, best: int = 10) -> dict[str, Ranking]:
        """The best classes of each image by every readout, as labels."""
        return self.engine.rank(self.readouts(), images, best)

    def predict(self, images: Any, top: int = 1, readout: str | None = None) -> list[Prediction]:
        """The ``top`` best class names for each image, by the primary readout or another."""
        self._require_started("predict")
        source = images_from(images, self.shape.size, self.shape.channels)
        rows = np.arange(len(source), dtype=np.int64)
        ranking = self._read(ImageSet(source, rows, np.zeros_like(rows)), readout, top)
        return [
            Prediction(tuple(self.classes[label] for label in labels), tuple(scores))
            for labels, scores in zip(ranking.classes.tolist(), ranking.scores.tolist(), strict=True)
        ]

    def evaluate(self, images: Any, labels: Sequence[str] | None = None, readout: str | None = None) -> float:
        """Percent of images classified right: of an image set (a task's ``test``), or of images with class names."""
        self._require_started("evaluate")
        if not isinstance(images, ImageSet):
            images = self._named(images, labels or ())
        best = self._read(images, readout, 1).classes[:, 0].numpy()
        return float((best == images.labels).mean() * 100)

    def save(self, path: str | Path) -> None:
        """Write a model directory: weights, memory and a description. ``drcil.load`` reads it."""
        from .runs.model import save_model

        self._require_started("save")
        save_model(self, Path(path))

    def _read(self, images: ImageSet, readout: str | None, best: int) -> Ranking:
        readouts = self.readouts()
        name = readout or next(iter(readouts))
        if name not in readouts:
            raise UserError(f"method '{self.options.method}' has no readout '{name}'; it has: {', '.join(readouts)}")
        return self.engine.rank({name: readouts[name]}, images, best)[name]

    def _own_task(self, images: Any, labels: Sequence[str]) -> Task:
        """The user's own images as the next task; the classes are numbered in order of appearance."""
        source = images_from(images, self.shape.size, self.shape.channels) if self._started else images_from(images)
        if len(labels) != len(source) or not len(source):
            raise UserError(f"learn needs one class name per image: {len(source)} images came with {len(labels)} names")
        names = [str(label) for label in labels]
        if not self._started:
            spec = own_spec(source)
            self.start(spec, ImageShape.of(source), Budget.parse(self.options.memory or spec.memory))
        classes = tuple(dict.fromkeys(names))
        number = {name: len(self.classes) + index for index, name in enumerate(classes)}
        rows = np.arange(len(source), dtype=np.int64)
        new = ImageSet(source, rows, np.array([number[name] for name in names], dtype=np.int64))
        return Task(
            number=len(self.sizes) + 1,
            classes=classes,
            sizes=(*self.sizes, len(classes)),
            new=new,
            test=empty_like(new),
            validation=None,
            memory=empty_like(new),
            budget=self.memory.budget,
            spec=self.spec,
        )

    def _named(self, images: Any, labels: Sequence[str]) -> ImageSet:
        source = images_from(images, self.shape.size, self.shape.channels)
        if len(labels) != len(source) or not len(source):
            raise UserError(f"evaluate needs one class name per image: {len(source)} images came with {len(labels)} names")
        strange = sorted({str(label) for label in labels} - set(self.classes))
        if strange:
            raise UserError(f"class '{strange[0]}' has not been learnt; known: {', '.join(self.classes)}")
        numbers = np.array([self.classes.index(str(label)) for label in labels], dtype=np.int64)
        return ImageSet(source, np.arange(len(source), dtype=np.int64), numbers)

    def _require_started(self, what: str) -> None:
        if not self._started:
            raise UserError(f"there is nothing to {what} yet: the learner has not learnt a task")
