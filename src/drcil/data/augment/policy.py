"""AutoAugment (Cubuk et al. 2019): every image draws one of 25 pairs of operations and applies them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ...keys import Draws
from .colour import TABLES, colour, sharpness
from .geometric import AFFINE, fetch, shear_x, shear_y
from .operations import NONE, OperationSet
from .tones import Toned

SubPolicy = tuple[str, float, int, str, float, int]
"""Operation, probability and magnitude index (0..9); twice."""

CIFAR10: tuple[SubPolicy, ...] = (
    ("invert", 0.1, 7, "contrast", 0.2, 6),
    ("rotate", 0.7, 2, "translateX", 0.3, 9),
    ("sharpness", 0.8, 1, "sharpness", 0.9, 3),
    ("shearY", 0.5, 8, "translateY", 0.7, 9),
    ("autocontrast", 0.5, 8, "equalize", 0.9, 2),
    ("shearY", 0.2, 7, "posterize", 0.3, 7),
    ("color", 0.4, 3, "brightness", 0.6, 7),
    ("sharpness", 0.3, 9, "brightness", 0.7, 9),
    ("equalize", 0.6, 5, "equalize", 0.5, 1),
    ("contrast", 0.6, 7, "sharpness", 0.6, 5),
    ("color", 0.7, 7, "translateX", 0.5, 8),
    ("equalize", 0.3, 7, "autocontrast", 0.4, 8),
    ("translateY", 0.4, 3, "sharpness", 0.2, 6),
    ("brightness", 0.9, 6, "color", 0.2, 8),
    ("solarize", 0.5, 2, "invert", 0.0, 3),
    ("equalize", 0.2, 0, "autocontrast", 0.6, 0),
    ("equalize", 0.2, 8, "equalize", 0.6, 4),
    ("color", 0.9, 9, "equalize", 0.6, 6),
    ("autocontrast", 0.8, 4, "solarize", 0.2, 8),
    ("brightness", 0.1, 3, "color", 0.7, 0),
    ("solarize", 0.4, 5, "autocontrast", 0.9, 3),
    ("translateY", 0.9, 9, "translateY", 0.7, 9),
    ("autocontrast", 0.9, 2, "solarize", 0.8, 3),
    ("equalize", 0.8, 8, "invert", 0.1, 3),
    ("translateY", 0.7, 9, "autocontrast", 0.9, 1),
)

IMAGENET: tuple[SubPolicy, ...] = (
    ("posterize", 0.4, 8, "rotate", 0.6, 9),
    ("solarize", 0.6, 5, "autocontrast", 0.6, 5),
    ("equalize", 0.8, 8, "equalize", 0.6, 3),
    ("posterize", 0.6, 7, "posterize", 0.6, 6),
    ("equalize", 0.4, 7, "solarize", 0.2, 4),
    ("equalize", 0.4, 4, "rotate", 0.8, 8),
    ("solarize", 0.6, 3, "equalize", 0.6, 7),
    ("posterize", 0.8, 5, "equalize", 1.0, 2),
    ("rotate", 0.2, 3, "solarize", 0.6, 8),
    ("equalize", 0.6, 8, "posterize", 0.4, 6),
    ("rotate", 0.8, 8, "color", 0.4, 0),
    ("rotate", 0.4, 9, "equalize", 0.6, 2),
    ("equalize", 0.0, 7, "equalize", 0.8, 8),
    ("invert", 0.6, 4, "equalize", 1.0, 8),
    ("color", 0.6, 4, "contrast", 1.0, 8),
    ("rotate", 0.8, 8, "color", 1.0, 2),
    ("color", 0.8, 8, "solarize", 0.8, 7),
    ("sharpness", 0.4, 7, "invert", 0.6, 8),
    ("shearX", 0.6, 5, "equalize", 1.0, 9),
    ("color", 0.4, 0, "equalize", 0.6, 3),
    ("equalize", 0.4, 7, "solarize", 0.2, 4),
    ("solarize", 0.6, 5, "autocontrast", 0.6, 5),
    ("invert", 0.6, 4, "equalize", 1.0, 8),
    ("color", 0.6, 4, "contrast", 1.0, 8),
    ("equalize", 0.8, 8, "equalize", 0.6, 3),
)

POLICIES: Mapping[str, tuple[SubPolicy, ...]] = MappingProxyType({"cifar10": CIFAR10, "imagenet": IMAGENET})

AUTO = OperationSet(
    tables=TABLES,
    maps=AFFINE,
    warp=fetch,
    mixes={"color": colour, "sharpness": sharpness, "shearX": shear_x, "shearY": shear_y},
)
OPERATIONS = AUTO.names


def magnitude(operation: str, index: int) -> tuple[float, float]:
    """Value of an operation at magnitude index 0..9 as (centre, swing): it takes centre + swing or centre - swing."""
    step = index / 9
    match operation:
        case "shearX" | "shearY":
            return 0.0, 0.3 * step
        case "translateX" | "translateY":
            return 0.0, 150 / 331 * step
        case "rotate":
            return 0.0, 30.0 * step
        case "color" | "contrast" | "sharpness" | "brightness":
            return 1.0, 0.9 * step
        case "posterize":
            return 8.0 - index // 2, 0.0
        case "solarize":
            return 256.0 * (1 - step), 0.0
        case _:  # autocontrast and equalize have no value; invert is solarize from 0 on
            return 0.0, 0.0


class AutoAugment:
    """A policy as tables of numbers, applied to a batch group by group: images that share an operation go together."""

    def __init__(self, policy: tuple[SubPolicy, ...], begin: Callable[[Tensor, Draws], Toned] | None = None) -> None:
        """``begin``: a pointwise step that comes before; None: there is none."""
        self.begin = begin
        pairs = [((p[0], p[1], p[2]), (p[3], p[4], p[5])) for p in policy]
        swings = [[magnitude(name, index) for name, _, index in pair] for pair in pairs]
        self.operations = torch.tensor([[OPERATIONS.index(name) for name, _, _ in pair] for pair in pairs])
        self.probabilities = torch.tensor([[chance for _, chance, _ in pair] for pair in pairs], dtype=torch.float64)
        self.centres, self.swings = torch.tensor(swings, dtype=torch.float64).unbind(2)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each image and turn (N, 2): which operation, or -1 for none, and its value."""
        pair = torch.randint(len(self.operations), (count,), generator=generator)
        chance = torch.rand(count, 2, dtype=torch.float64, generator=generator)
        sign = torch.randint(2, (count, 2), generator=generator) * 2 - 1
        operations = self.operations[pair].masked_fill(chance >= self.probabilities[pair], NONE)
        return operations, self.centres[pair] + sign * self.swings[pair]

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        toned = Toned(images) if self.begin is None else self.begin(images, draws)
        operations, values = (draws.taken(one) for one in self.draw(draws.count, draws.generator))
        for turn in range(2):
            AUTO.apply(toned, operations[:, turn], values[:, turn])
        return toned.settled()
