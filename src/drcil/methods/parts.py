"""Parts: modules that a method keeps from task to task, each able to say how to build it again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..keys import randomness
from ..nets.build import build_net
from ..nets.expanded import build_expanded
from ..nets.output import Output
from ..registry import Registry


class Part(Protocol):
    """A module with a description from which ``build_part`` makes one of the same shape."""

    @abstractmethod
    def describe(self) -> dict[str, Any]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> Any: ...

    def eval(self) -> Any: ...


PARTS: Registry[Callable[[dict[str, Any]], Part]] = Registry("part", "drcil.methods")
PARTS.register("net")(build_net)
PARTS.register("expanded")(build_expanded)


def build_part(description: dict[str, Any], tensors: dict[str, Tensor]) -> Part:
    """A part of this description that holds these tensors, in evaluation mode."""
    # Building draws initial weights, only to overwrite them: nobody else's draws shall depend on that.
    with randomness("overwritten"):
        part = PARTS[description["part"]](description)
    expected = part.state_dict()
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            raise UserError(f"'{name}' is {'missing' if name in expected else 'not expected'}")
        if tensors[name].shape != expected[name].shape:
            shapes = [tuple(tensor.shape) for tensor in (tensors[name], expected[name])]
            raise UserError(f"'{name}' has shape {shapes[0]} instead of {shapes[1]}")
    part.load_state_dict(tensors)
    part.eval()
    return part


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
        unit = normalised(features)
        sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels, unit)
        means = sums / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]
        return cls(means / means.norm(dim=1, keepdim=True).clamp(min=1e-8))

    def forward(self, output: Output) -> Tensor:
        features = normalised(output.features.pooled)
        return -torch.cdist(features, self.means.to(features.device)).square()

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

    def describe(self) -> dict[str, Any]:
        return {"part": "number"}


@PARTS.register("number")
def _number(description: dict[str, Any]) -> Number:
    return Number()


def normalised(features: Tensor) -> Tensor:
    """Each row divided by its length (plus 1e-8)."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + 1e-8)
