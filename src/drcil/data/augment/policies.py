"""AutoAugment and RandAugment: tables, draws, application to a batch.

RandAugment (Cubuk et al. 2020) is timm's ``rand-m9-n2-mstd0.5-inc1``: every image draws two of fifteen operations, with
replacement; each happens with probability one half, at magnitude 9 of 10 with a little noise. All operations grow
stronger with the magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from ...seeding import Draws
from .operations import (
    AFFINE,
    BICUBIC,
    LEVELS,
    TABLES,
    Shown,
    Toned,
    colour,
    in_pieces,
    sharpness,
    shear_x,
    shear_y,
    solarize_add_table,
    warp_bicubic,
    warp_nearest,
)

NONE = -1
"""The operation number for no operation."""


@dataclass(frozen=True)
class OperationSet:
    """Operations by name, in three kinds; an operation's number is its index in ``names``."""

    tables: Mapping[str, Callable[[Shown, Tensor], Tensor]]
    """Pointwise operations: images and values to tables."""
    maps: Mapping[str, Callable[[int, int, Tensor], Tensor]]
    """Those that move pixels: height, width and values to coefficients (…, N) for one ``warp``."""
    warp: Callable[[Tensor, Tensor], Tensor]
    """Images and coefficients to moved images."""
    mixes: Mapping[str, Callable[[Tensor, Tensor], Tensor]]
    """Those whose pixels are weighted sums of several: images and values to images."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.tables, *self.maps, *self.mixes)

    def apply(self, images: Toned, operations: Tensor, values: Tensor) -> None:
        """Apply to each image the operation of its number (-1: none) with its value.

        Those that share an operation go together. All pointwise ones become tables, to be looked up when pixels are
        asked for; all that move pixels share one warp.
        """
        height, width = images.shape[2:]
        order = operations.argsort()
        starts = torch.bincount(operations + 1, minlength=len(self.names) + 1).cumsum(0).tolist()
        spans = {
            name: order[starts[i] : starts[i + 1]] for i, name in enumerate(self.names) if starts[i] < starts[i + 1]
        }

        tables = [
            self.tables[name](images.shown(indices), values[indices]).expand(-1, images.shape[1], -1)
            for name, indices in spans.items()
            if name in self.tables
        ]
        if tables:
            images.tone(order[starts[0] : starts[len(self.tables)]], torch.cat(tables))
        maps = [self.maps[name](height, width, values[indices]) for name, indices in spans.items() if name in self.maps]
        if maps:
            moved = order[starts[len(self.tables)] : starts[len(self.tables) + len(self.maps)]]
            images.put(moved, in_pieces(self.warp, images.pixels(moved), torch.cat(maps, dim=-1)))
        for name, indices in spans.items():
            if name in self.mixes:
                images.put(indices, in_pieces(self.mixes[name], images.pixels(indices), values[indices]))


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
    warp=warp_nearest,
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
        operations, values = (draws.taken(draw) for draw in self.draw(draws.count, draws.generator))
        for turn in range(2):
            AUTO.apply(toned, operations[:, turn], values[:, turn])
        return toned.settled()


TURNS = 2
PROBABILITY = 0.5
MAGNITUDE, NOISE, STRONGEST = 9.0, 0.5, 10.0
"""Magnitudes are normal with this mean and standard deviation, cut off at 0 and at the strongest."""


def value_at(operation: str, magnitudes: Tensor, signs: Tensor) -> Tensor:
    """Values of an operation at magnitudes 0..10; the signs (1 or -1) say which way, where there are two."""
    share = magnitudes / STRONGEST
    match operation:
        case "shearX" | "shearY":
            return signs * 0.3 * share
        case "translateX" | "translateY":
            return signs * 0.45 * share
        case "rotate":
            return signs * 30 * share
        case "color" | "contrast" | "sharpness" | "brightness":
            return 1 + signs * 0.9 * share
        case "posterize":
            return 4 - (4 * share).floor()
        case "solarize":
            return LEVELS - (LEVELS * share).floor()
        case "solarizeAdd":
            return (110 * share).floor()
        case _:  # autocontrast and equalize have no value; invert is solarize from 0 on
            return torch.zeros_like(share)


class RandAugment:
    """The operations with the fill that the images' mean colour is, applied to a batch group by group."""

    def __init__(self, mean: Sequence[float]) -> None:
        fill = torch.tensor([min(LEVELS - 1, round((LEVELS - 1) * level)) for level in mean])
        self.operations = OperationSet(
            tables={**TABLES, "solarizeAdd": solarize_add_table},
            maps=BICUBIC,
            warp=partial(warp_bicubic, fill=fill),
            mixes={"color": colour, "sharpness": sharpness},
        )

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each image and turn (N, 2): which operation, or -1 for none, and its value."""
        names, shape = self.operations.names, (count, TURNS)
        operations = torch.randint(len(names), shape, generator=generator)
        chance = torch.rand(shape, dtype=torch.float64, generator=generator)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        signs = torch.randint(2, shape, generator=generator) * 2 - 1
        magnitudes = (MAGNITUDE + NOISE * noise).clamp(0, STRONGEST)
        every = torch.stack([value_at(name, magnitudes, signs) for name in names])
        return operations.masked_fill(chance >= PROBABILITY, NONE), every.gather(0, operations[None])[0]

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        operations, values = (draws.taken(draw) for draw in self.draw(draws.count, draws.generator))
        toned = Toned(images)
        for turn in range(TURNS):
            self.operations.apply(toned, operations[:, turn], values[:, turn])
        return toned.settled()
