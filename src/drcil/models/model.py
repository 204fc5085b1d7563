"""A model in memory: create, learn a task, refresh, forget, rename."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..data.dataset import DataSpec
from ..data.image_set import ArraySource, ImageSet, ImageShape, Int64, Source, empty_like
from ..data.user_images import normalize_class_name, one_line
from ..errors import UserError, check_text, unknown_name
from ..errors import check_path as given_path
from ..heads.head import remaining
from ..inference import FeatureBank
from ..methods import Architecture, Method
from ..methods.catalog import changed_settings, named_method, resolve_settings
from ..methods.recipe import known_schedule
from ..nets.backbone import preprocessing_of
from ..nets.net import Readout
from ..nets.timm_backbones import named_weights
from ..settings import MemoryBudget, ModelSettings, Weights, expand_user
from ..stages import Engine
from ..streams.memory import KeptImages, Memory
from ..streams.stream import Task
from .model_format import STATE, WEIGHTS, read_state
from .store import model_at
from .usage import Calibration, Change, ImageDigests, Usage


@dataclass
class Model:
    """A method with everything it has learnt: classes, exemplars, held-out images."""

    name: str
    """The name of the method."""
    method: Method
    data: DataSpec
    shape: ImageShape
    memory: Memory
    augment: str | None = None
    """The training augmentation; None: that of the recipe or the data."""
    seed: int = 0
    readout: str | None = None
    """The leading readout; None: the method's first."""
    sizes: tuple[int, ...] = ()
    """For each learnt task, the number of its classes that are not forgotten."""
    classes: tuple[str, ...] = ()
    """Class names by label."""
    held: KeptImages = field(default_factory=KeptImages)
    """Images that were held out of training, to measure accuracy and calibration."""
    usage: Usage | None = None
    """Record of a model that learnt a user's images; None for a model of a stream."""
    digests: ImageDigests = field(default_factory=ImageDigests)
    """Digests of the user's images, to recognise them."""

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the leading readout, if it is known."""
        calibration = self.usage.calibration if self.usage else None
        if calibration is None or calibration.readout != next(iter(self.readouts())):
            return None
        return calibration

    @property
    def temperature(self) -> float:
        """The divisor of scores of the leading readout before softmax; 1 if it is not calibrated."""
        calibration = self.calibration
        return 1.0 if calibration is None else calibration.temperature

    @property
    def augmentation(self) -> str:
        """The name of the training augmentation."""
        return self.augment or self.method.settings.augment or self.data.augment

    def readouts(self) -> Mapping[str, Readout]:
        """The ways to read class scores, the leading one first."""
        readouts = self.method.readouts()
        return readouts if self.readout is None else {self.readout: readouts[self.readout], **readouts}

    def copy(self) -> Model:
        """A model that can change without changing this one. Parts are copied, images are shared."""
        method = copy.copy(self.method)
        method.parts = copy.deepcopy(self.method.parts)
        # Exemplars and held-out images that nobody has read yet are not read for the copy.
        return replace(self, method=method, memory=copy.copy(self.memory), held=copy.copy(self.held))

    def learn(self, task: Task, engine: Engine) -> None:
        """Learn the classes of the next task."""
        self.require_exemplars(task.total)
        exemplars = empty_like(task.new) if self.memory.images is None else self.memory.images
        self.method.learn(replace(task, memory=exemplars, budget=self.memory.budget), engine)
        features = self._features(engine)
        self.memory.update(task.new, task.total, features)
        self._consolidate(task.new, features)
        self.sizes, self.classes = task.sizes, (*self.classes, *task.classes)

    def refresh(self, images: ImageSet, engine: Engine) -> None:
        """Learn more images of known classes. The backbone does not change, so neither do the features."""
        features = self._features(engine)
        self.memory.refresh(images, len(self.classes), features)
        self.method.refresh(images, self.memory.images or empty_like(images), engine)
        self._consolidate(images, features)

    def _features(self, engine: Engine) -> FeatureBank:
        """The features by which exemplars are selected."""
        net = self.method.herding_net()
        return FeatureBank(lambda images: engine.features(net, images))

    def _consolidate(self, learnt: ImageSet, features: FeatureBank) -> None:
        exemplars = self.memory.images or empty_like(learnt)
        self.method.consolidate(exemplars, features)
        # Without a copy, a few exemplars would keep every image that was ever learnt in memory.
        self.memory.images = exemplars.copied_to_memory(is_temporary)

    def forget(self, names: Sequence[str]) -> None:
        """Remove classes by name. The labels of the others become 0, 1, … again, in the same order.

        Layers that all classes share do not change.
        """
        for name in names:
            if name not in self.classes:
                raise unknown_name("class", name, self.classes)
        labels = [label for label, name in enumerate(self.classes) if name not in names]
        if not labels:
            raise UserError("a model must keep at least one class; delete the model instead of forgetting all classes")
        if len(labels) == len(self.classes):
            raise UserError(f"no class to forget was named; the model knows {', '.join(self.classes)}")
        new_labels = np.full(len(self.classes), -1, dtype=np.int64)
        new_labels[labels] = np.arange(len(labels))
        self.method.forget(set(np.flatnonzero(new_labels < 0).tolist()))
        for images in (self.memory, self.held):
            images.images = images.images and _relabel(images.images, new_labels)
        self.sizes, self.classes = tuple(remaining(self.sizes, labels)), tuple(self.classes[label] for label in labels)
        if self.usage is not None:
            self.usage = self.usage.select(labels)
        self.digests = self.digests.relabel(new_labels)

    def rename(self, old: str, new: str) -> None:
        """Rename a class."""
        old = old if old in self.classes else normalize_class_name(old)
        if old not in self.classes:
            raise unknown_name("class", old, self.classes)
        new = one_line("the new name", check_text("the new name", new))
        if new in self.classes:
            raise UserError(f"there is a class '{new}' already; every class needs a name of its own")
        self.classes = tuple(new if name == old else name for name in self.classes)
        if self.usage is not None:
            self.usage = self.usage.add_change(Change.now("rename", (old, new)))

    def require_exemplars(self, classes: int) -> None:
        """Check that a method that needs an exemplar of every class gets one, for this number of classes."""
        budget = self.memory.budget
        if self.method.needs_memory() and budget.quota(classes) == 0:
            raise UserError(
                f"'{self.name}' needs an exemplar of every class, but a memory of '{budget}' has none for "
                f"each of {classes} classes; give a memory of at least {classes}"
            )

    def require_refreshable(self) -> None:
        """Check that it can learn more of a known class: with exemplars of the others, or by sums over images."""
        budget = self.memory.budget
        if not self.method.accumulates and budget.quota(len(self.classes)) == 0:
            raise UserError(
                f"'{self.name}' with a memory of '{budget}' has no exemplars to balance its classes by, so it cannot "
                "learn more of a class that it knows; begin a model with a memory, or with 'simplecil' or 'ranpac'"
            )


def is_temporary(source: Source) -> bool:
    """Whether images exist only in memory, together with others that the user passed."""
    return isinstance(source, ArraySource) and source.is_embedded


def _relabel(images: ImageSet, new_labels: Int64) -> ImageSet:
    """The images with new labels, without those whose new label is -1."""
    labels = new_labels[images.labels]
    return images.relabel(labels).subset(labels >= 0).copied_to_memory(is_temporary)


def check_model_settings(settings: ModelSettings) -> None:
    """Refuse unknown names of methods and schedules, and a memory that the method does not allow."""
    known_schedule(settings.schedule)
    by_definition = named_method(settings.method)[0].build.memory
    if by_definition is None or settings.memory is None:
        return
    required = MemoryBudget.parse(by_definition)
    if MemoryBudget.parse(settings.memory) != required:
        raise UserError(
            f"'{settings.method}' has a memory of '{required}' by definition, so a memory of '{settings.memory}' is "
            "not possible; omit it, or choose another method"
        )


def new_model(
    settings: ModelSettings, data: DataSpec, shape: ImageShape, budget: MemoryBudget, stream: str | None = None
) -> Model:
    """A model that has learnt nothing yet, for images of this kind.

    ``budget`` is the memory if neither the settings nor the method say one; ``stream``: its name, for recipes that
    have a table for it.
    """
    check_model_settings(settings)
    spec, readout = named_method(settings.method)
    backbone, weights = spec.backbone(data, settings.backbone), settings.initial_weights
    if weights is not None:
        data = _as_learnt_from(weights, data, backbone, shape)
    resolved = resolve_settings(
        spec,
        data.kind,
        settings.settings,
        settings.epochs_scale,
        stream,
        backbone,
        settings.schedule,
        settings.stage_options,
    )
    architecture = Architecture(backbone, shape.channels, shape.size, weights, settings.freeze)
    memory = spec.build.memory or settings.memory
    return Model(
        name=spec.name,
        method=spec.build(resolved, architecture),
        data=data,
        shape=shape,
        memory=Memory(MemoryBudget.parse(memory) if memory else budget),
        augment=settings.augment,
        seed=settings.seed,
        readout=readout,
    )


def idle_settings(settings: ModelSettings, model: Model, large_base: bool, stream: str | None = None) -> list[str]:
    """A sentence for each setting that has no effect; settings equal to the recipe's are not reported.

    ``model``: made from these settings.
    """
    spec, method = named_method(settings.method)[0], model.method
    changed = changed_settings(
        spec, model.data.kind, settings.settings, stream, method.architecture.backbone, settings.schedule
    )
    idle = method.idle_settings(large_base)
    return [
        f"setting '{key}' has no effect on this run of '{spec.name}': it needs {idle[stage]}"
        for key, stage in ((key, key.partition(".")[0]) for key in changed)
        if stage in idle
    ]


def _as_learnt_from(weights: Weights, data: DataSpec, backbone: str, shape: ImageShape) -> DataSpec:
    """Weights want images normalised as those were that they were learnt from.

    Those of a model say how; of others it is what the backbone's published ones want, if that is known.
    """
    if weights.mean is not None and weights.std is not None and len(weights.mean) == shape.channels:
        return replace(data, mean=weights.mean, std=weights.std)
    preprocessing = preprocessing_of(backbone)
    normalisation = preprocessing.normalisation(shape.channels) if preprocessing else None
    return data if normalisation is None else replace(data, mean=normalisation[0], std=normalisation[1])


def find_initial_weights(settings: ModelSettings) -> Weights | None:
    """The weights that the settings ask for; weights of a model come with its normalisation."""
    if isinstance(settings.weights, Weights):
        return settings.weights
    file: Path | None = None
    if settings.weights is not None:
        path = expand_user(given_path("the path of weights", settings.weights))
        file = model_at(path) if os.path.isdir(path) else path
    weights = named_weights(file, settings.pretrained, settings.backbone)
    if weights is None or Path(weights.file).name != WEIGHTS or not os.path.isfile(Path(weights.file).with_name(STATE)):
        return weights
    data = read_state(Path(weights.file).parent).data
    return replace(weights, mean=data.mean, std=data.std)
