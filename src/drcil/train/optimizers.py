"""Optimisers of a stage: which parameters, which rates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..stages import Group, Stage


def groups_of(stage: Stage) -> list[Group]:
    """The stage's groups; by default every parameter of the net that requires a gradient, in one."""
    if stage.groups is not None:
        return list(stage.groups)
    return [Group([parameter for parameter in stage.net.parameters() if parameter.requires_grad])]


@contextmanager
def trained_parameters(stage: Stage) -> Iterator[None]:
    """Within the block only what the stage trains requires a gradient, so that no other is computed."""
    before = {parameter: parameter.requires_grad for parameter in stage.net.parameters()}
    trained = {parameter for group in groups_of(stage) for parameter in group.parameters}
    try:
        for parameter in before:
            parameter.requires_grad_(parameter in trained)
        yield
    finally:
        for parameter, required in before.items():
            parameter.requires_grad_(required)
            parameter.grad = None


def make_optimizer(stage: Stage, fused: bool) -> torch.optim.Optimizer:
    """The schedule's optimiser of the stage's groups, at the first rate; ``fused``: one kernel for all parameters."""
    schedule = stage.schedule
    groups = [
        {
            "params": list(group.parameters),
            "lr": schedule.lr * group.lr_factor,
            "lr_factor": group.lr_factor,
            "first_lr_factor": group.lr_factor if group.first_lr_factor is None else group.first_lr_factor,
            "weight_decay": schedule.weight_decay if group.weight_decay is None else group.weight_decay,
        }
        for group in groups_of(stage)
    ]
    if schedule.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=schedule.lr, fused=fused)
    return torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, epoch: int) -> None:
    """Give every group its share of this rate in an epoch (from 0)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor" if epoch else "first_lr_factor"]
