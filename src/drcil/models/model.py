"""A model: a method, what it has learnt, and what its images are like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..data.datasets.dataset import DataSpec
from ..data.sources.imageset import ImageShape
from ..errors import UserError
from ..methods import Architecture, Method
from ..methods.resolve import resolve_settings
from ..methods.spec import named_method
from ..nets.features import preprocessing_of
from ..nets.output import Readout
from ..nets.weights import Weights
from ..recipes import known_schedule
from ..streams.budget import Budget
from ..streams.memory import KeptImages, Memory
from .usage import Calibration, Usage


@dataclass(frozen=True)
class ModelOptions:
    """What a model is made from, besides data. None: what the method's recipe or the kind of data says."""

    method: str
    """A name, or NAME:READOUT."""
    backbone: str | None = None
    memory: str | None = None
    augment: str | None = None
    seed: int = 0
    epochs_scale: float = 1.0
    schedule: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights | None = None
    """What the backbone starts from; None: from random numbers."""
    freeze: str | None = None
    """The part of the backbone that is frozen, with all parts before it; ``"backbone"``: all of it."""

    def __post_init__(self) -> None:
        known_schedule(self.schedule)
        demanded = named_method(self.method)[0].build.memory
        if self.memory is not None and Budget.parse(self.memory) != Budget.parse(demanded or self.memory):
            raise UserError(
                f"'{self.method}' has a memory of '{Budget.parse(demanded or self.memory)}' by definition, so a memory "
                f"of '{self.memory}' is not possible; omit it, or choose another method"
            )


@dataclass
class Model:
    """All that predicting and learning on take, but for an engine."""

    name: str
    """Of the method."""
    method: Method
    data: DataSpec
    shape: ImageShape
    memory: Memory
    augment: str | None = None
    """None: as the recipe or the data says."""
    seed: int = 0
    readout: str | None = None
    """The readout that leads; None: the method's first."""
    sizes: tuple[int, ...] = ()
    """Number of classes that each learnt task brought and that are still there."""
    classes: tuple[str, ...] = ()
    """Names of the classes learnt, by label."""
    held: KeptImages = field(default_factory=KeptImages)
    """Images of the classes that were held out of training, to measure by."""
    usage: Usage | None = None
    """What is known of a model that learnt a user's own images."""

    @property
    def calibration(self) -> Calibration | None:
        """How scores of the leading readout become probabilities, if that is known."""
        known = self.usage.calibration if self.usage else None
        return known if known is not None and known.readout == next(iter(self.readouts())) else None

    @property
    def temperature(self) -> float:
        """What scores of the leading readout are divided by before they become probabilities; 1: not calibrated."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def augmentation(self) -> str:
        """The name of the training augmentation: as was asked for, else as the recipe or the data says."""
        return self.augment or self.method.settings.augment or self.data.augment

    def readouts(self) -> Mapping[str, Readout]:
        """The ways to read class scores, the leading one first."""
        known = self.method.readouts()
        return known if self.readout is None else {self.readout: known[self.readout], **known}

    def require_exemplars(self, classes: int) -> None:
        """Some methods need an exemplar of every class, however many there will be."""
        budget = self.memory.budget
        if self.method.needs_memory() and budget.quota(classes) == 0:
            raise UserError(
                f"'{self.name}' needs an exemplar of every class, but a memory of '{budget}' has none for "
                f"each of {classes} classes; give a memory of at least {classes}"
            )

    def require_refreshable(self) -> None:
        """More images of a known class need exemplars of all the others, or sums to which they are added."""
        budget = self.memory.budget
        if not self.method.adds_up and budget.quota(len(self.classes)) == 0:
            raise UserError(
                f"'{self.name}' with a memory of '{budget}' has no exemplars to balance its classes by, so it cannot "
                "learn more of a class that it knows; begin a model with a memory, or with 'simplecil' or 'ranpac'"
            )


def new_model(
    options: ModelOptions, data: DataSpec, shape: ImageShape, budget: Budget, stream: str | None = None
) -> Model:
    """A model that has learnt nothing yet, for images of this kind.

    ``budget`` holds where no other is demanded; ``stream``: its name, for recipes that know it.
    """
    spec, readout = named_method(options.method)
    backbone = spec.backbone(data, options.backbone)
    if options.weights is not None:
        data = _as_learnt_from(options.weights, data, backbone, shape)
    settings = resolve_settings(
        spec, data.kind, options.settings, options.epochs_scale, stream, backbone, options.schedule
    )
    architecture = Architecture(backbone, shape.channels, shape.size, options.weights, options.freeze)
    given = spec.build.memory or options.memory
    return Model(
        name=spec.name,
        method=spec.build(settings, architecture),
        data=data,
        shape=shape,
        memory=Memory(Budget.parse(given) if given else budget),
        augment=options.augment,
        seed=options.seed,
        readout=readout,
    )


def _as_learnt_from(weights: Weights, data: DataSpec, backbone: str, shape: ImageShape) -> DataSpec:
    """Weights want images normalised as those were that they were learnt from.

    Those of a model say how; of others it is what the backbone's published ones want, if that is known.
    """
    if weights.mean is not None and weights.std is not None and len(weights.mean) == shape.channels:
        return replace(data, mean=weights.mean, std=weights.std)
    wanted = preprocessing_of(backbone)
    normalisation = wanted.normalisation(shape.channels) if wanted else None
    return data if normalisation is None else replace(data, mean=normalisation[0], std=normalisation[1])
