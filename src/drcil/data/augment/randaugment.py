"""RandAugment (Cubuk et al. 2020) as vision transformers are trained with: timm's ``rand-m9-n2-mstd0.5-inc1``.

Every image draws two of fifteen operations, with replacement; each happens with probability one half, at magnitude 9
of 10 with a little noise. All operations grow stronger with the magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...keys import Draws
from ..datasets.dataset import DataSpec
from .bicubic import BICUBIC, warp
from .colour import TABLES, colour, sharpness, solarize_add_table
from .operations import NONE, OperationSet
from .pipeline import AUGMENTS, Augment, crop_augment
from .pixels import LEVELS
from .tones import Toned

TURNS = 2
PROBABILITY = 0.5
MAGNITUDE, NOISE, STRONGEST = 9.0, 0.5, 10.0
"""Magnitudes are normal with this mean and standard deviation, cut off at 0 and at the strongest."""


@AUGMENTS.register("randaugment")
def rand_augment(spec: DataSpec, in_memory: bool) -> Augment:
    """As crop, then RandAugment where the images allow policies. DyTox's own augmentation."""
    crop = crop_augment(spec, in_memory)
    return crop if spec.policy is None else crop.then(RandAugment(spec.mean))


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
            warp=partial(warp, fill=fill),
            mixes={"color": colour, "sharpness": sharpness},
        )

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """For each image and turn (N, 2): which operation, or -1 for none, and its value."""
        names, shape = self.operations.names, (count, TURNS)
        chosen = torch.randint(len(names), shape, generator=generator)
        chance = torch.rand(shape, dtype=torch.float64, generator=generator)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        signs = torch.randint(2, shape, generator=generator) * 2 - 1
        magnitudes = (MAGNITUDE + NOISE * noise).clamp(0, STRONGEST)
        every = torch.stack([value_at(name, magnitudes, signs) for name in names])
        return chosen.masked_fill(chance >= PROBABILITY, NONE), every.gather(0, chosen[None])[0]

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        operations, values = (draws.taken(one) for one in self.draw(draws.count, draws.generator))
        toned = Toned(images)
        for turn in range(TURNS):
            self.operations.apply(toned, operations[:, turn], values[:, turn])
        return toned.settled()
