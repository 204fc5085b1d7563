"""Optimisers of a stage: which parameters, which rates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from ..nets.freezing import frozen_backbones, frozen_parameters
from ..stages import Group, Stage


def groups_of(stage: Stage) -> list[Group]:
    """The stage's groups without what is frozen; by default all parameters that require a gradient, in one."""
    groups = stage.groups
    if groups is None:
        groups = [Group([parameter for parameter in stage.net.parameters() if parameter.requires_grad])]
    frozen = {id(one) for backbone in frozen_backbones(stage.net) for one in frozen_parameters(backbone)}
    return [replace(group, parameters=[one for one in group.parameters if id(one) not in frozen]) for group in groups]


def is_idle(stage: Stage) -> bool:
    """Whether all that the stage would train is frozen."""
    return bool(frozen_backbones(stage.net)) and not any(group.parameters for group in groups_of(stage))


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


def decayed_apart(stage: Stage) -> list[Group]:
    """The stage's groups; those without a decay of their own divided by what the schedule says of each parameter."""
    names = {parameter: name for name, parameter in stage.net.named_parameters()}
    groups = []
    for group in groups_of(stage):
        if group.weight_decay is not None:
            groups.append(group)
            continue
        # A group without parameters stays one.
        by_decay: dict[float, list[nn.Parameter]] = {} if group.parameters else {stage.schedule.weight_decay: []}
        for parameter in group.parameters:
            decay = stage.schedule.decay_of(names.get(parameter, ""), parameter.ndim)
            by_decay.setdefault(decay, []).append(parameter)
        groups += [replace(group, parameters=own, weight_decay=decay) for decay, own in by_decay.items()]
    return groups


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def make_optimizer(stage: Stage, fused: bool) -> torch.optim.Optimizer:
    """The schedule's optimiser of the stage's groups, at the first rate; ``fused``: one kernel for all parameters."""
    schedule = stage.schedule
    groups = [
        {
            "params": list(group.parameters),
            "lr": schedule.lr * group.lr_factor,
            "lr_factor": group.lr_factor,
            "first_lr_factor": group.lr_factor if group.first_lr_factor is None else group.first_lr_factor,
            "weight_decay": group.weight_decay,
        }
        for group in decayed_apart(stage)
    ]
    if schedule.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=schedule.lr, fused=fused)
    return torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum, nesterov=schedule.nesterov, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, epoch: int) -> None:
    """Give every group its share of this rate in an epoch (from 0)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor" if epoch else "first_lr_factor"]
