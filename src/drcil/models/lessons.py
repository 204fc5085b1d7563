"""What a model does with images that it is to learn: its method learns, and its memory chooses."""

from __future__ import annotations

from dataclasses import replace

from ..data.sources.imageset import ArraySource, ImageSet, Source, copied, empty_like
from ..inference.bank import FeatureBank
from ..stages import Engine
from ..streams.stream import Task
from .model import Model


def learn_task(model: Model, task: Task, engine: Engine) -> None:
    """Learn the classes of the next task."""
    model.require_exemplars(task.total)
    kept = model.memory.images
    task = replace(task, memory=empty_like(task.new) if kept is None else kept, budget=model.memory.budget)
    model.method.learn(task, engine)
    bank = _bank(model, engine)
    model.memory.update(task.new, task.total, bank)
    _settle(model, task.new, bank)
    model.sizes, model.classes = task.sizes, (*model.classes, *task.classes)


def learn_more(model: Model, images: ImageSet, engine: Engine) -> None:
    """Learn more images of classes that it knows. The backbone stays as it is, and with it the features."""
    bank = _bank(model, engine)
    model.memory.refresh(images, len(model.classes), bank)
    model.method.refresh(images, model.memory.images or empty_like(images), engine)
    _settle(model, images, bank)


def _bank(model: Model, engine: Engine) -> FeatureBank:
    """The features that exemplars are chosen by."""
    net = model.method.herding_net()
    return FeatureBank(lambda images: engine.features(net, images))


def _settle(model: Model, learnt: ImageSet, bank: FeatureBank) -> None:
    """The memory has chosen: the method takes note of it, and nothing else is held on to."""
    exemplars = model.memory.images or empty_like(learnt)
    model.method.consolidate(exemplars, bank)
    # Otherwise a few exemplars would hold on to every image that was ever given.
    model.memory.images = copied(exemplars, is_passing)


def is_passing(source: Source) -> bool:
    """Whether its images are nowhere but in memory, with others that were given along."""
    return isinstance(source, ArraySource) and source.embedded
