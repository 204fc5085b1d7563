"""Heads of every registered kind, as after training, and features for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drcil.heads import Head
from drcil.heads.head import HEADS
from drcil.nets.backbone import build_head
from drcil.seeding import seeded_torch

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cosine": [{}, {"proxies": 3}],
    "projected": [{"width": 9}],
    **{
        name: [{"branch": branch, "fusion": fusion} for branch in ("conv", "bn") for fusion in ("mean", "sum")]
        for name in ("rc", "drc")
    },
}
"""Options of heads that have some."""
EVERY_HEAD = [(name, options) for name in sorted(HEADS) for options in OPTIONS.get(name, [{}])]
NAMES = [" ".join([name, *map(str, options.values())]) for name, options in EVERY_HEAD]
"""Test names of ``EVERY_HEAD``."""


def learn_something(head: Head) -> None:
    """Change every parameter, and let normalisations measure a batch, as training on a task would."""
    dtype = next(head.parameters()).dtype
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
        head.train()(2 * torch.randn(5, head.channels, 2, 2, dtype=dtype) + 1)
    head.eval()


def trained_head(name: str, channels: int, tasks: list[int], **options: Any) -> Head:
    """A double-precision head after these tasks, with training in each.

    What it learns depends on the width and the tasks only: heads of two kinds get the same training.
    """
    with seeded_torch("test", channels, str(tasks)):
        head = build_head(name, channels, **options).double()
        for new_classes in tasks:
            head.grow(new_classes)
            learn_something(head)
    return head


def maps(channels: int) -> Tensor:
    with seeded_torch("test", "maps", channels):
        return torch.randn(4, channels, 3, 3, dtype=torch.float64)
