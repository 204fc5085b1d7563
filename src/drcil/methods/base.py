"""What a method is: how it learns a task, what it keeps, and how it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn

from ..data.sources.imageset import ImageSet
from ..errors import UserError
from ..heads.base import Head
from ..nets.build import backbone_for
from ..nets.expanded import members_of
from ..nets.features import Backbone, Family, family_of
from ..nets.fitting import misfits, start_from
from ..nets.freezing import WHOLE, freeze
from ..nets.net import Net
from ..nets.output import Readout
from ..nets.weights import Weights
from ..stages import Engine, Stage
from ..streams.stream import Task
from .objectives import cross_entropy
from .parts import Part, build_part
from .refreshing import balancing
from .settings import AnySettings


@dataclass(frozen=True)
class Architecture:
    """Which backbone a method is to use, and for which images."""

    backbone: str
    channels_in: int
    image_size: int
    weights: Weights | None = None
    """What it starts from; None: from random numbers."""
    frozen: str | None = None
    """The part of the backbone that is frozen, with all parts before it; ``"backbone"``: all of it."""


@dataclass(frozen=True)
class MethodState:
    """Everything the next task needs: tensors by name, and what to build before they are loaded."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]


class Method(ABC):
    """How a net learns one task: a sequence of stages.

    What outlives a task is kept in ``parts``: modules that can describe themselves. Saving, resuming and
    exporting a method is saving its parts.
    """

    Settings: ClassVar[type[AnySettings]]
    backbone_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The variant of a convolutional backbone that the method's definition demands (``{"last_relu": False}``)."""
    family: ClassVar[Family | None] = None
    """The family of backbones that the method's definition demands; None: any will do."""
    head: ClassVar[str] = "linear"
    copies: ClassVar[str] = "1"
    """Networks held while training, for `drcil list methods`."""
    readout_names: ClassVar[tuple[str, ...]] = ("classifier",)
    """What ``readouts`` gives, by name and in its order, so that it is known before anything is learnt."""
    reads_logits: ClassVar[bool] = True
    """Whether the leading readout is the logits of ``net``, which add-ons such as ``two-stage`` build on."""
    memory: ClassVar[str | None] = None
    """A budget that the method's definition demands, whatever the protocol says (``"0"``, ``"all"``)."""
    adds_up: ClassVar[bool] = False
    """Whether more images of a known class are added to what it keeps of all images, so that ``refresh`` can do without
    exemplars.
    """

    def __init__(self, settings: AnySettings, architecture: Architecture) -> None:
        self.settings = settings
        self.architecture = architecture
        self.parts: dict[str, Part] = {}
        self.reads_weights = True
        """Whether a fresh backbone is given the weights that were named; where it is only rehearsed, it is not."""

    @classmethod
    def addons(cls, presets: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """What ``+NAME`` behind the method's name sets, by that name, over the settings that the name fixes.

        Add-ons for all methods are not among them: those are in ``ADDONS``.
        """
        return {}

    def needs_memory(self) -> bool:
        """Whether it cannot do without at least one exemplar of every class."""
        return False

    def stage_map_weight(self, task: Task) -> str | None:
        """The setting that weighs a loss on stage maps, where it counts; None: any backbone will do."""
        return None

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
        """Let go of classes, by label: every part lets go of what it keeps of them; labels above close up."""
        for name, part in self.parts.items():
            if not hasattr(part, "forget"):
                raise UserError(f"the part '{name}' of the method cannot forget classes")
        for part in self.parts.values():
            part.forget(classes)

    def readouts(self) -> Mapping[str, Readout]:
        """The ways to read class scores; the first leads."""
        return {"classifier": Readout(self.net)}

    def herding_net(self) -> nn.Module:
        """Whose features choose the exemplars."""
        return self.net

    @property
    def net(self) -> Net:
        net = self.parts["net"]
        assert isinstance(net, Net)
        return net

    def new_net(self, head: Callable[[int], Head]) -> Net:
        """A fresh backbone, from weights if some were named, with this kind of head (made for the backbone's width)."""
        backbone = self.fresh_backbone()
        if self.architecture.weights is not None and self.reads_weights:
            start_from(backbone, self.architecture.weights)
        return Net(backbone, head(backbone.channels))

    def fresh_backbone(self) -> Backbone:
        """A backbone with random weights, frozen as far as was asked for."""
        own = self.architecture
        # A transformer has neither shortcuts to choose nor a ReLU at its end.
        options = self.backbone_options if family_of(own.backbone) == "convolutional" else {}
        backbone = backbone_for(own.backbone, own.channels_in, own.image_size, **options)
        if own.frozen is not None:
            freeze(backbone, own.frozen)
        return backbone

    def misfits(self) -> str:
        """What of the weights does not fit the backbone, in a sentence; empty: all of it fits, or there are none."""
        weights = self.architecture.weights
        return "" if weights is None else misfits(self.fresh_backbone, weights)

    def cautions(self) -> list[str]:
        """What a user should know before the first task is learnt, in sentences."""
        own, unfit = self.architecture, self.misfits()
        sentences = [unfit] if unfit else []
        if own.frozen is not None and own.weights is None:
            what = "the backbone is" if own.frozen == WHOLE else f"'{own.frozen}' and what comes before it are"
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
        return MethodState(tensors, {name: part.describe() for name, part in self.parts.items()})

    def restore(self, state: MethodState) -> None:
        """Become what the state tells of; or the error that says which tensor does not fit."""
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in state.description}
        for path, tensor in state.tensors.items():
            name, _, own = path.partition(".")
            if name not in tensors:
                raise UserError(f"'{path}' belongs to no part")
            tensors[name][own] = tensor
        self.parts = {name: build_part(own, tensors[name]) for name, own in state.description.items()}
        if self.architecture.frozen is not None:
            for part in self.parts.values():
                for backbone in members_of(part) if isinstance(part, Net) else ():
                    freeze(backbone, self.architecture.frozen)

    def parameters(self, readout: str | None = None) -> int:
        """Learnt numbers that a readout's net answers with, not those for training alone; None: the leading one."""
        known = self.readouts()
        net = known[readout or next(iter(known))].net
        return net.size() if isinstance(net, Net) else sum(parameter.numel() for parameter in net.parameters())
