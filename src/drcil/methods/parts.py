"""Parts: modules that a method keeps from task to task, each able to say how to build it again."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import ConfigDict, Discriminator, Tag
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import UserError
from ..keys import randomness
from ..nets.build import build_net
from ..nets.description import Count, ExpandedForm, Form, NetForm, TaskNetForm
from ..nets.expanded import build_expanded
from ..nets.output import Output
from ..nets.task_attention import build_task_net
from ..registry import Registry


class Part(Protocol):
    """A module with a description from which ``build_part`` makes one of the same shape."""

    @abstractmethod
    def describe(self) -> dict[str, Any]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> Any: ...

    def eval(self) -> Any: ...

    def forget(self, classes: Collection[int]) -> None:
        """Let go of all that it keeps of classes, by label; labels above close up."""


_ROWS = 1024
"""Features that are added at a time."""

PARTS: Registry[Callable[[dict[str, Any]], Part]] = Registry("part", "drcil.methods")
PARTS.register("net")(build_net)
PARTS.register("expanded")(build_expanded)
PARTS.register("task-attention")(build_task_net)


class NumberForm(Form):
    part: Literal["number"]


class NearestMeanForm(Form):
    part: Literal["nearest-mean"]
    shape: tuple[Count, Count]


class ScalesForm(Form):
    part: Literal["scales"]
    classes: Count


class OtherForm(Form):
    """A part that drcil does not know; who registered it checks the rest."""

    model_config = ConfigDict(extra="allow", frozen=True)

    part: str


def _form(description: Any) -> str:
    kind = description.get("part") if isinstance(description, dict) else getattr(description, "part", None)
    known = ("net", "expanded", "task-attention", "number", "nearest-mean", "scales")
    return kind if kind in known else "other"


PartForm = Annotated[
    Annotated[NetForm, Tag("net")]
    | Annotated[ExpandedForm, Tag("expanded")]
    | Annotated[TaskNetForm, Tag("task-attention")]
    | Annotated[NumberForm, Tag("number")]
    | Annotated[NearestMeanForm, Tag("nearest-mean")]
    | Annotated[ScalesForm, Tag("scales")]
    | Annotated[OtherForm, Tag("other")],
    Discriminator(_form),
]
"""What ``Part.describe`` may say."""


def build_part(description: dict[str, Any], tensors: dict[str, Tensor]) -> Part:
    """A part of this description that holds these tensors, in evaluation mode."""
    build = PARTS[description["part"]]
    # Building draws initial weights, only to overwrite them: nobody else's draws shall depend on that.
    with randomness("overwritten"), _Room(_SPARE + 4 * sum(tensor.numel() for tensor in tensors.values())):
        part = build(description)
    _require_fit(part, tensors)
    if json.loads(json.dumps(part.describe())) != description:
        raise UserError(f"what is built from the description calls itself {json.dumps(part.describe())}")
    part.load_state_dict(tensors)
    part.eval()
    return part


_SPARE = 2**22
"""Numbers that parts may have besides those that are stored."""
_FILLED = {torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.rand, torch.randn}
"""What makes tensors of a size that is given."""


class _Room(TorchFunctionMode):
    """Within the block there is room for so many numbers: a description may tell of more than the tensors fill, and of
    more than there is.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.left = numbers

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _FILLED:
            size = kwargs.get("size", args[0] if args and isinstance(args[0], Sequence) else args)
            self.left -= max(0, math.prod(size))
            if self.left < 0:
                raise UserError("the description is of something larger than the tensors")
        return function(*args, **kwargs)


def _require_fit(part: Part, tensors: dict[str, Tensor]) -> None:
    """The tensors must have the names, shapes and types of the part's own."""
    expected = part.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            raise UserError(f"'{name}' is {'missing' if name in expected else 'not expected'}")
        given, own = tensors[name], expected[name]
        if given.shape != own.shape:
            raise UserError(f"'{name}' has shape {tuple(given.shape)} instead of {tuple(own.shape)}")
        if given.dtype != own.dtype:
            raise UserError(f"'{name}' is of type {given.dtype} instead of {own.dtype}")
        # Their sum says it at a fraction of the cost, unless it overflows.
        if given.is_floating_point() and not given.sum().isfinite() and not given.isfinite().all():
            raise UserError(f"'{name}' has values that are not finite")


class NearestMean(nn.Module):
    """Nearest mean of exemplars: the score of a class is minus the squared distance to its mean.

    Features and means have unit length, as herding and iCaRL have it.
    """

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = nn.Buffer(means)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> NearestMean:
        """Means of the normalised features of each class, divided by their norm."""
        sums = class_sums(features, labels, torch.zeros(classes, features.shape[1]), normalised)
        means = sums / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]
        return cls(means / means.norm(dim=1, keepdim=True).clamp(min=1e-8))

    def forward(self, output: Output) -> Tensor:
        features = normalised(output.features.pooled)
        return -torch.cdist(features, self.means.to(features.device)).square()

    def forget(self, classes: Collection[int]) -> None:
        self.means = nn.Buffer(self.means[[label for label in range(len(self.means)) if label not in classes]])

    def describe(self) -> dict[str, Any]:
        return {"part": "nearest-mean", "shape": list(self.means.shape)}


@PARTS.register("nearest-mean")
def _nearest_mean(description: dict[str, Any]) -> NearestMean:
    return NearestMean(torch.zeros(description["shape"]))


class Number(nn.Module):
    """A number that a method has to remember."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Buffer(torch.tensor(value, dtype=torch.float64))

    def forget(self, classes: Collection[int]) -> None:
        """It is of no class."""

    def describe(self) -> dict[str, Any]:
        return {"part": "number"}


@PARTS.register("number")
def _number(description: dict[str, Any]) -> Number:
    return Number()


def normalised(features: Tensor) -> Tensor:
    """Each row divided by its length (plus 1e-8)."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + 1e-8)


def class_sums(features: Tensor, labels: Tensor, sums: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """What is made of each row, added to the row of its label in ``sums``; some rows at a time, without copying all."""
    for some, own in zip(torch.split(features, _ROWS), torch.split(labels, _ROWS), strict=True):
        sums.index_add_(0, own, made(some))
    return sums
