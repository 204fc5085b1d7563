"""Weights from a file: where they are, how they are known again, and the tensors in them by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import path as given_path
from ..disk import read_tensors
from ..errors import UserError
from ..reading import file_size
from ..seals import Seal
from ..torchfiles import read_torch_file

_LIMIT = 2**35
"""Bytes of a file, at most."""
_SAFETENSORS = ".safetensors"
_OF_A_MODEL = "method.safetensors"
"""Where a model directory has its weights."""
_PLACES = ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema", "net", "backbone", "teacher")
"""Under which names programs save the weights beside other things; what is first here is taken first."""


@dataclass(frozen=True)
class Weights:
    """A file of weights that a backbone starts from, and what it was when it was named."""

    file: str
    """By its absolute path."""
    seal: Seal
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """How the images were normalised that they were learnt from, by channel; None: the backbone may know."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Weights:
        """The weights in a file, or in a model directory."""
        file = given_path("the path of weights", path).expanduser().absolute()
        if os.path.isdir(file):
            if not os.path.isfile(file / _OF_A_MODEL):
                raise UserError(
                    f"{file} is a directory without {_OF_A_MODEL}; give a file of weights, a model, or a run that has "
                    "finished a task"
                )
            file = file / _OF_A_MODEL
        if file_size(file, _LIMIT) == 0:
            raise UserError(f"the weights {file} cannot be used: the file is empty")
        return cls(str(file), Seal.of_file(file))


@dataclass(frozen=True)
class Entries:
    """The tensors of a file by name."""

    tensors: dict[str, Tensor]
    in_order: bool
    """Whether they stand in the order in which the net that was saved has them."""


def read_weights(weights: Weights) -> Entries:
    """What is in the file, which must be the one that was named."""
    path = Path(weights.file)
    if not os.path.isfile(path):
        raise UserError(f"the weights {path} are needed to begin, but there is no such file; restore it")
    if file_size(path, _LIMIT) != weights.seal.size or Seal.of_file(path) != weights.seal:
        raise UserError(f"the weights {path} are not those that were named at first: the file has changed; restore it")
    try:
        if path.suffix == _SAFETENSORS:
            entries = Entries(read_tensors(path)[0], in_order=False)
        else:
            entries = Entries(_state_dict(path, read_torch_file(path, _LIMIT, before_archives=True)), in_order=True)
    except UserError as error:
        raise UserError(
            f"{error}; weights are a file of {_SAFETENSORS}, one that torch.save wrote, or a model"
        ) from None
    for name, tensor in entries.tensors.items():
        if tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.isfinite().all():
            raise UserError(f"the weights {path} cannot be used: '{name}' has values that are not finite")
    return entries


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    """The tensors by name: what the content has under one of the usual names, or the content itself."""
    inside = content if isinstance(content, Mapping) else {}
    # What programs keep beside the weights may be a tensor, too.
    for found in (*(inside[place] for place in _PLACES if place in inside), content):
        tensors = _tensors(found)
        if tensors:
            return tensors
    names = ", ".join(f"'{str(name)[:40]}'" for name in list(inside)[:5])
    raise UserError(
        f"the weights {path} cannot be used: there are no tensors by name in it, nor under "
        f"{', '.join(repr(place) for place in _PLACES[:3])}" + (f"; it has {names}" if names else "")
    )


def _tensors(found: Any) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value.detach() for name, value in found.items() if isinstance(value, Tensor)}
