"""Method: learns a task, keeps parts, gives readouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ..data.image_set import ImageSet
from ..errors import UserError
from ..heads.head import Head
from ..nets.backbone import WHOLE, Backbone, Family, backbone_for, family_of, freeze
from ..nets.expanded import members_of
from ..nets.initial_weights import start_from, unmatched_tensors
from ..nets.net import Net, Readout
from ..nets.parts import Part, describe_part, load_part
from ..objectives import cross_entropy
from ..settings import Weights
from ..stages import Engine, ParamGroup, Schedule, Stage
from ..streams.samplers import class_balanced
from ..streams.stream import Task


class Settings(BaseModel):
    """A method's settings. Fields that are schedules are its stages."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    augment: str | None = Field(default=None, min_length=1)
    """The training augmentation; None: that of the data."""

    def schedules(self) -> dict[str, Schedule]:
        return {name: value for name, value in self if isinstance(value, Schedule)}

    def scaled(self, scale: float) -> Settings:
        """The same settings with ``scale`` times the epochs in every stage."""
        return self.model_copy(update={name: schedule.scaled(scale) for name, schedule in self.schedules().items()})


AnySettings = Settings
"""The same class under a name that ``Method.Settings`` does not hide."""


STAGE = "refresh"
_EPOCHS, _RATE = 1 / 2, 1 / 5
"""Relative to the first task's: the classifier is already good and should change little."""


def balancing(net: Net, exemplars: ImageSet, schedules: Mapping[str, Schedule]) -> Stage:
    """Train the classifier of a net by images of all classes alike; the rest is frozen, all in evaluation mode."""
    if "first" not in schedules:
        raise UserError("the method has no schedule 'first', from which that of more images would follow")
    return Stage(
        STAGE,
        net,
        exemplars,
        cross_entropy,
        gentle(schedules["first"]),
        groups=[ParamGroup(net.head.class_parameters())],
        frozen=[net],
        sampler=class_balanced,
        # So that every image goes through the backbone once: seconds instead of minutes, and no less accurate.
        augment=False,
    )


def gentle(first: Schedule) -> Schedule:
    """As in the first task, for half of its epochs at a fifth of its rate, which falls to zero."""
    return first.model_copy(
        update={
            "epochs": max(1, round(_EPOCHS * first.epochs)),
            "lr": _RATE * first.lr,
            "curve": "cosine",
            "milestones": (),
            "lr_end": 0.0,
            "warmup": 0,
        }
    )


@dataclass(frozen=True)
class Architecture:
    """The backbone of a method, and the images that it takes."""

    backbone: str
    channels_in: int
    image_size: int
    weights: Weights | None = None
    """What it starts from; None: from random numbers."""
    frozen: str | None = None
    """The part of the backbone that is frozen, with all parts before it; ``"backbone"``: all of it."""


PartKind = TypeVar("PartKind", bound=Part)


@dataclass(frozen=True)
class MethodState:
    """Everything the next task needs: tensors by name, and what to build before they are loaded."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]


class Method(ABC):
    """How a net learns one task: a sequence of stages.

    State that outlives a task is stored in ``parts``: modules that can describe themselves. Saving, resuming and
    exporting a method is saving its parts.
    """

    Settings: ClassVar[type[AnySettings]]
    backbone_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The variant of a convolutional backbone that the method's definition demands (``{"last_relu": False}``)."""
    family: ClassVar[Family | None] = None
    """The family of backbones that the method's definition demands; None: any family."""
    head: ClassVar[str] = "linear"
    readout_names: ClassVar[tuple[str, ...]] = ("classifier",)
    """The names of ``readouts``, in its order, known before training."""
    reads_logits: ClassVar[bool | None] = None
    """Whether the first readout is the logits of ``net``, which the add-on ``two-stage`` needs. A class that overrides
    ``readouts`` declares it; None: only if ``readouts`` is not overridden.
    """
    memory: ClassVar[str | None] = None
    """A budget that the method's definition demands, whatever the protocol says (``"0"``, ``"all"``)."""
    accumulates: ClassVar[bool] = False
    """Whether it adds images of known classes to statistics of all images, so that ``refresh`` needs no exemplars."""

    def __init__(self, settings: AnySettings, architecture: Architecture) -> None:
        self.settings = settings
        self.architecture = architecture
        self.parts: dict[str, Part] = {}
        self.reads_weights = True
        """Whether a fresh backbone loads the configured weights; a dry run does not."""

    @classmethod
    def addons(cls, presets: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The settings of each add-on ``+NAME``, by its name; they override those that the method's name fixes.

        Add-ons for all methods are not among them: those are in ``ADDONS``.
        """
        return {}

    def needs_memory(self) -> bool:
        """Whether it needs at least one exemplar of every class."""
        return False

    def stage_map_weight(self, task: Task) -> str | None:
        """The setting that weighs a loss on stage maps, if it is used; None: any backbone is suitable."""
        return None

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        """The settings without effect given the others, each with what it would need; a stage is one setting.

        ``large_base``: whether the first task of the stream is a large one.
        """
        return {}

    @abstractmethod
    def learn(self, task: Task, engine: Engine) -> None:
        """Learn the task's classes."""

    def consolidate(self, exemplars: ImageSet, features: Callable[[ImageSet], Tensor]) -> None:
        """Called when the memory holds the task's exemplars; ``features`` are the herding net's, computed once."""

    def refresh(self, images: ImageSet, exemplars: ImageSet, engine: Engine) -> None:
        """Learn more of classes that it knows; ``consolidate`` follows.

        ``images``: the new ones; ``exemplars``: of all classes, chosen again where there are new images. Here the
        classifier of every net that a readout reads is balanced on the exemplars.
        """
        nets = {id(readout.net): readout.net for readout in self.readouts().values()}
        for net in nets.values():
            if isinstance(net, Net):
                engine.fit(self.refresh_stage(net, exemplars))

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        """The stage that balances the classifier of a net on exemplars of all classes."""
        return balancing(net, exemplars, self.settings.schedules())

    def forget(self, classes: Collection[int]) -> None:
        """Remove classes, by label, from every part; higher labels move down."""
        for part in self.parts.values():
            part.forget(classes)

    def readouts(self) -> Mapping[str, Readout]:
        """The readouts of class scores by name; the first is the leading one."""
        return {"classifier": Readout(self.net)}

    def herding_net(self) -> nn.Module:
        """The net whose features select the exemplars."""
        return self.net

    def part(self, name: str, kind: type[PartKind]) -> PartKind:
        """The part of this name, which must be of this kind."""
        part = self.parts[name]
        if not isinstance(part, kind):
            raise TypeError(f"the part '{name}' is of the kind {type(part).__name__}, not {kind.__name__}")
        return part

    @property
    def net(self) -> Net:
        return self.part("net", Net)

    def new_net(self, head: Callable[[int], Head]) -> Net:
        """A fresh backbone, from weights if some were named, with this kind of head (made for the backbone's width)."""
        backbone = self.fresh_backbone()
        if self.architecture.weights is not None and self.reads_weights:
            start_from(backbone, self.architecture.weights)
        return Net(backbone, head(backbone.channels))

    def fresh_backbone(self) -> Backbone:
        """A backbone with random weights, frozen as configured."""
        architecture = self.architecture
        # A transformer has neither shortcuts to choose nor a ReLU at its end.
        options = self.backbone_options if family_of(architecture.backbone) == "convolutional" else {}
        backbone = backbone_for(architecture.backbone, architecture.channels_in, architecture.image_size, **options)
        if architecture.frozen is not None:
            freeze(backbone, architecture.frozen)
        return backbone

    def unmatched_tensors(self) -> str:
        """What of the weights does not fit the backbone, in a sentence; empty: all of it fits, or there are none."""
        weights = self.architecture.weights
        return "" if weights is None else unmatched_tensors(self.fresh_backbone, weights)

    def warnings(self) -> list[str]:
        """What a user should know before the first task is learnt, in sentences."""
        architecture, unfit = self.architecture, self.unmatched_tensors()
        sentences = [unfit] if unfit else []
        if architecture.frozen is not None and architecture.weights is None:
            what = (
                "the backbone is"
                if architecture.frozen == WHOLE
                else f"'{architecture.frozen}' and what comes before it are"
            )
            sentences.append(f"{what} frozen with random weights")
        return sentences

    def begin(self, task: Task, head: Callable[[int], Head]) -> Net:
        """The net that task 1 trains: a fresh one, grown to the task's classes, and kept as the part ``net``."""
        net = self.new_net(head)
        weight = self.stage_map_weight(task)
        if weight and not net.backbone.stage_maps:
            raise UserError(
                f"the loss POD-spatial, which '{weight}' weighs, compares stage maps, but backbone "
                f"'{self.architecture.backbone}' gives none; set {weight}=0, or choose another backbone"
            )
        net.grow(len(task.classes))
        self.parts["net"] = net
        return net

    def first_task(self, task: Task, engine: Engine, head: Callable[[int], Head]) -> None:
        """Task 1 as most methods have it: a fresh net, cross-entropy, the schedule ``first``."""
        net = self.begin(task, head)
        engine.fit(Stage("first", net, task.new, cross_entropy, self.settings.schedules()["first"]))

    def state(self) -> MethodState:
        tensors = {
            f"{name}.{path}": tensor for name, part in self.parts.items() for path, tensor in part.state_dict().items()
        }
        return MethodState(tensors, {name: describe_part(part) for name, part in self.parts.items()})

    def restore(self, state: MethodState) -> None:
        """Restore a state; raises an error that names a tensor that does not fit."""
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in state.description}
        for path, tensor in state.tensors.items():
            name, _, inner_path = path.partition(".")
            if name not in tensors:
                raise UserError(f"'{path}' belongs to no part")
            tensors[name][inner_path] = tensor
        self.parts = {name: load_part(description, tensors[name]) for name, description in state.description.items()}
        if self.architecture.frozen is not None:
            for part in self.parts.values():
                for backbone in members_of(part) if isinstance(part, Net) else ():
                    freeze(backbone, self.architecture.frozen)

    def parameters(self, readout: str | None = None) -> int:
        """Learnt numbers that a readout's net answers with, not those for training alone; None: the leading one."""
        readouts = self.readouts()
        net = readouts[readout or next(iter(readouts))].net
        return net.size() if isinstance(net, Net) else sum(parameter.numel() for parameter in net.parameters())
