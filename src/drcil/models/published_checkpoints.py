"""Imports the DRC authors' CIFAR-100 checkpoints.

A file holds a ``state_dict``, the ``task`` after which it was written (counted from 0) and the ``seed`` of the class
order. In the ``state_dict``, ``convnet.*`` is a ResNet-32, ``BHO.*`` and ``BHN.*`` are the old and the new branch, each
a whole batch normalisation, and ``fc.*`` is the classifier. How many classes a task brought is not said: they are the
rows of the classifier divided by the tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import CIFAR_SPEC
from ..data.datasets.cifar100 import SIZE
from ..data.image_set import ImageShape
from ..errors import UserError
from ..files import read_torch_file
from ..methods.maf import Maf
from ..nets.net import Net
from ..nets.parts import Number
from ..settings import MemoryBudget, ModelSettings
from ..streams.protocols import class_order
from .model import Model, new_model
from .model_directory import save_model
from .model_format import STATE

METHOD = "mafdrc"
UNUSED = frozenset({"convnet.fc.weight", "convnet.fc.bias"})
"""A linear layer that the published backbone carries along and never calls."""
_OLD, _NEW = "BHO.", "BHN."
_LIMIT = 2**28
"""Bytes of a file, at most; the published ones have two million."""
_LAYERS = {
    "backbone.stem.conv": "convnet.conv_1_3x3",
    "backbone.stem.norm": "convnet.bn_1",
    "head.branches.norm": "BHN",
    "head.classifier": "fc",
}
_BLOCK = re.compile(r"backbone\.stages\.(?P<stage>\d+)\.(?P<block>\d+)\.(?P<half>first|second)\.(?P<kind>conv|norm)")
_BRANCHES = {f"head.branches.{age}_": prefix for age, prefix in (("old", _OLD), ("new", _NEW))}


@dataclass(frozen=True)
class Checkpoint:
    """The content of one file."""

    path: Path
    tensors: dict[str, Tensor]
    task: int
    """Counted from 1."""
    order_seed: int

    @property
    def classes(self) -> int:
        return len(self.tensors["fc.weight"])


def import_all(paths: Sequence[Path], out: Path) -> list[Path]:
    """Write models: of one checkpoint as ``out``, of several as ``out/task01``, …; none unless all can be read."""
    models = [import_checkpoint(path) for path in paths]
    if len(paths) == 1:
        targets = [out]
    elif os.path.isfile(out / STATE):
        raise UserError(f"{out} is itself a model; choose another --out for several checkpoints")
    else:
        targets = [out / f"task{len(model.sizes):02d}" for model in models]
    for target in targets:
        if targets.count(target) > 1:
            raise UserError(f"several checkpoints are of {target.name}; give one of each task")
        if os.path.lexists(target):
            raise UserError(f"{target} already exists; choose another --out, or remove it first")
    for model, target in zip(models, targets, strict=True):
        save_model(model, target)
    return targets


def import_checkpoint(path: Path) -> Model:
    """The model in a published checkpoint. Its memory is empty: exemplars were not published."""
    checkpoint = read_checkpoint(path)
    shape = ImageShape(channels=3, size=SIZE, in_memory=True)
    model = new_model(ModelSettings(method=METHOD), CIFAR_SPEC, shape, MemoryBudget.parse(CIFAR_SPEC.memory))
    assert isinstance(model.method, Maf)
    model.classes = _class_names(checkpoint)  # Which bounds their number, and with it that of the tasks.
    model.sizes = (checkpoint.classes // checkpoint.task,) * checkpoint.task
    net = model.method.new_net(model.method.new_head)
    for new_classes in model.sizes:
        net.head.grow(new_classes)
    _fill(net, checkpoint)
    model.method.parts["net"] = net.eval()
    if checkpoint.task == 1:
        model.method.parts["untrained"] = Number(_untrained_scale(checkpoint))
    return model


def read_checkpoint(path: Path) -> Checkpoint:
    """The file's content, of which task, seed and the number of classes make sense together."""
    content = read_torch_file(path, _LIMIT)
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise UserError(f"{path} is not a published checkpoint: it has no 'state_dict' of tensors")
    task, seed = _number(path, content, "task"), _number(path, content, "seed")
    weight = tensors.get("fc.weight")
    if weight is None:
        raise UserError(f"{path} is not a published checkpoint: fc.weight is missing")
    rows = len(weight) if weight.ndim else 0
    if rows < 1 or rows % (task + 1):
        raise UserError(f"{path} has {rows} classes, which cannot be the classes of {task + 1} tasks of equal size")
    return Checkpoint(path, dict(tensors), task + 1, seed)


def published_name(name: str) -> str:
    """The name of a tensor of our net in the authors' checkpoints.

    >>> published_name("backbone.stages.0.4.second.norm.running_var")
    'convnet.stage_1.4.bn_b.running_var'
    >>> published_name("head.branches.old_scale")
    'BHO.weight'
    """
    for prefix, branch in _BRANCHES.items():
        if name.startswith(prefix):
            return branch + {"scale": "weight", "shift": "bias"}[name.removeprefix(prefix)]
    layer, _, tensor = name.rpartition(".")
    block = _BLOCK.fullmatch(layer)
    if block is None:
        return f"{_LAYERS[layer]}.{tensor}"
    kind, half = {"conv": "conv", "norm": "bn"}[block["kind"]], {"first": "a", "second": "b"}[block["half"]]
    return f"convnet.stage_{int(block['stage']) + 1}.{block['block']}.{kind}_{half}.{tensor}"


def _number(path: Path, content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if type(value) is not int or not 0 <= value < 2**64:
        # The text of a nested value may be endless.
        plain = value is None or isinstance(value, str | float) or (type(value) is int and abs(value) < 2**64)
        description = repr(value)[:80] if plain else f"of type {type(value).__name__}, or too large"
        raise UserError(f"{path} is not a published checkpoint: its '{name}' is {description}, not a number from 0 on")
    return value


def _class_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The classes learnt, in the order that the checkpoint's seed draws."""
    names = files("drcil.data.datasets").joinpath("lists", "cifar100.txt").read_text(encoding="utf-8").split()
    if checkpoint.classes > len(names):
        raise UserError(f"{checkpoint.path} has {checkpoint.classes} classes, but CIFAR-100 has only {len(names)}")
    order = class_order(len(names), checkpoint.order_seed)
    return tuple(names[label] for label in order[: checkpoint.classes])


def _fill(net: Net, checkpoint: Checkpoint) -> None:
    """Put the published tensors into a net of the right shape."""
    initial, tensors = net.state_dict(), checkpoint.tensors
    old = {name for name in initial if published_name(name).startswith(_OLD)}
    shapes = {published_name(name): tensor.shape for name, tensor in initial.items() if name not in old}
    shapes |= {_OLD + name.removeprefix(_NEW): shape for name, shape in shapes.items() if name.startswith(_NEW)}
    _check(checkpoint, shapes)
    state = {name: tensors[published_name(name)] for name in initial if name not in old}
    for name in old:
        # At task 1 the old branch of the file has never been trained.
        state[name] = initial[name] if checkpoint.task == 1 else tensors[published_name(name)].unsqueeze(0)
    net.load_state_dict(state)


def _check(checkpoint: Checkpoint, shapes: Mapping[str, torch.Size]) -> None:
    path, tensors = checkpoint.path, checkpoint.tensors
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise UserError(f"{path} is not a published CIFAR-100 checkpoint: {_named(missing)} missing")
    unexpected = [name for name in tensors if name not in shapes and name not in UNUSED]
    if unexpected:
        raise UserError(f"{path} is not a published CIFAR-100 checkpoint: {_named(unexpected)} not expected")
    for name, shape in shapes.items():
        tensor, dtype = tensors[name], torch.int64 if name.endswith("num_batches_tracked") else torch.float32
        if tensor.shape != shape:
            raise UserError(f"{path}: {name} has shape {list(tensor.shape)}, but {list(shape)} is expected")
        if (tensor.dtype, tensor.layout, tensor.device.type) != (dtype, torch.strided, "cpu"):
            raise UserError(f"{path}: {name} is not a plain tensor of {str(dtype).removeprefix('torch.')}")
        if not tensor.isfinite().all() or (name.endswith("running_var") and (tensor < 0).any()):
            raise UserError(f"{path}: {name} has values that no training leaves, such as infinite ones")
    for name in ("running_mean", "running_var"):
        if not torch.equal(tensors[_OLD + name], tensors[_NEW + name]):
            raise UserError(
                f"{path}: {_OLD}{name} and {_NEW}{name} differ, but both branches see the same maps and must agree"
            )


def _untrained_scale(checkpoint: Checkpoint) -> float:
    """What weight decay left of the old branch in the course of task 1: one scale for all channels, and no shift."""
    scale, shift = checkpoint.tensors["BHO.weight"], checkpoint.tensors["BHO.bias"]
    if not torch.equal(scale, scale[:1].expand_as(scale)) or shift.any():
        raise UserError(f"{checkpoint.path} says that it is of task 1, but its old branch (BHO) has been trained")
    return float(scale[0])


def _named(names: list[str]) -> str:
    """``a is``, or ``a (and 2 more) are``."""
    return f"{names[0][:80]} is" if len(names) == 1 else f"{names[0][:80]} (and {len(names) - 1} more) are"
