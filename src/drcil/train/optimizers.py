"""Optimisers of a stage: which parameters, which rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from ..nets.backbone import frozen_backbones, frozen_parameters
from ..stages import ParamGroup, Stage


def groups_of(stage: Stage) -> list[ParamGroup]:
    """The stage's groups without what is frozen; by default all parameters that require a gradient, in one."""
    groups = stage.groups
    if groups is None:
        groups = [ParamGroup([parameter for parameter in stage.net.parameters() if parameter.requires_grad])]
    frozen = {parameter for backbone in frozen_backbones(stage.net) for parameter in frozen_parameters(backbone)}
    return [
        replace(group, parameters=[parameter for parameter in group.parameters if parameter not in frozen])
        for group in groups
    ]


def trains_nothing(stage: Stage) -> bool:
    """Whether everything that the stage would train is frozen."""
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


def _groups_by_decay(stage: Stage) -> list[ParamGroup]:
    """The stage's groups; those without a weight decay are split by the schedule's decay of each parameter."""
    exempt = exempt_parameters(stage.net) if stage.schedule.decay == "weights" else set()
    groups = []
    for group in groups_of(stage):
        if group.weight_decay is not None:
            groups.append(group)
            continue
        # A group without parameters stays a group.
        by_decay: dict[float, list[nn.Parameter]] = {} if group.parameters else {stage.schedule.weight_decay: []}
        for parameter in group.parameters:
            decay = 0.0 if parameter in exempt else stage.schedule.decay_of(parameter.ndim)
            by_decay.setdefault(decay, []).append(parameter)
        groups += [replace(group, parameters=members, weight_decay=decay) for decay, members in by_decay.items()]
    return groups


def exempt_parameters(module: nn.Module) -> set[nn.Parameter]:
    """The parameters that modules list in ``no_weight_decay``. A module with this method decides for all within it."""
    list_names: Callable[[], set[str]] | None = getattr(module, "no_weight_decay", None)
    if list_names is not None:
        return {module.get_parameter(name) for name in list_names()}
    exempt: set[nn.Parameter] = set()
    for child in module.children():
        exempt |= exempt_parameters(child)
    return exempt


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
        for group in _groups_by_decay(stage)
    ]
    if schedule.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=schedule.lr, fused=fused)
    return torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum, nesterov=schedule.nesterov, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, epoch: int) -> None:
    """Give every group its share of this rate in an epoch (from 0)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor" if epoch else "first_lr_factor"]
