"""Reads weight files and matches their tensors to a backbone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..errors import check_path as given_path
from ..files import FileChecksum, read_tensors, read_torch_file
from ..seeding import seeded_torch
from ..settings import Weights, expand_user
from .backbone import Backbone

_LIMIT = 2**35
"""Bytes of a file, at most."""
_SAFETENSORS = ".safetensors"
_OF_A_MODEL = "method.safetensors"
"""Where a model directory has its weights."""
_KEYS = ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema", "net", "backbone", "teacher")
"""Keys under which programs save the weights; the first match is used."""


def find_weights(path: str | os.PathLike[str]) -> Weights:
    """The weights in a file, or in a model directory."""
    file = expand_user(given_path("the path of weights", path)).absolute()
    if os.path.isdir(file):
        if not os.path.isfile(file / _OF_A_MODEL):
            raise UserError(
                f"{file} is a directory without {_OF_A_MODEL}; give a file of weights, a model, or a run that has "
                "finished a task"
            )
        file = file / _OF_A_MODEL
    seal = FileChecksum.of_file(file, _LIMIT)
    if seal.size == 0:
        raise UserError(f"the weights {file} cannot be used: the file is empty")
    return Weights(str(file), seal)


def read_weights(weights: Weights) -> dict[str, Tensor]:
    """The tensors of the file by name. The file must not have changed since it was named."""
    path = Path(weights.file)
    if not os.path.isfile(path):
        raise UserError(f"the weights {path} are needed to begin, but there is no such file; restore it")
    if FileChecksum.of_file(path, _LIMIT) != weights.seal:
        raise UserError(f"the weights {path} are not those that were named at first: the file has changed; restore it")
    try:
        if path.suffix == _SAFETENSORS:
            tensors = read_tensors(path)[0]
        else:
            tensors = _state_dict(path, read_torch_file(path, _LIMIT, legacy=True))
    except UserError as error:
        raise UserError(
            f"{error}; weights are a file of {_SAFETENSORS}, one that torch.save wrote, or a model"
        ) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.isfinite().all():
            raise UserError(f"the weights {path} cannot be used: '{name}' has values that are not finite")
    return tensors


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    """The tensors by name: the entry under one of the common keys, or the content itself."""
    inside = content if isinstance(content, Mapping) else {}
    # Other entries next to the weights may be tensors, too.
    for candidate in (*(inside[key] for key in _KEYS if key in inside), content):
        tensors = _tensors(candidate)
        if tensors:
            return tensors
    names = ", ".join(f"'{str(name)[:40]}'" for name in list(inside)[:5])
    raise UserError(
        f"the weights {path} cannot be used: there are no tensors by name in it, nor under "
        f"{', '.join(repr(key) for key in _KEYS[:3])}" + (f"; it has {names}" if names else "")
    )


def _tensors(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    return {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}


_CLASSIFIERS = frozenset(
    ("fc", "_fc", "classifier", "head", "head_dist", "heads", "last_linear", "linear", "logits", "output")
)
"""Names of classifier layers: these are never loaded, and may be missing."""
_COUNTER = "num_batches_tracked"
"""What old files lack, and nothing depends on."""
_NAMED = 3


@dataclass(frozen=True)
class Fit:
    """What a file has for a backbone."""

    taken: dict[str, Tensor]
    """By the backbone's names."""
    needed: int
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    misshapen: Sequence[str] = ()
    """Those of another shape, with both shapes."""
    elsewhere: Sequence[str] = ()
    """Tensors of other saved parts than the backbone and its classifier."""

    @property
    def share(self) -> float:
        return sum(not name.endswith(_COUNTER) for name in self.taken) / self.needed

    @property
    def misfits(self) -> str:
        """What did not fit; empty: everything fitted."""
        kinds = {
            "missing": self.missing,
            "not expected": self.unexpected,
            "of another shape": self.misshapen,
            "of other parts left out": self.elsewhere,
        }
        descriptions = [f"{len(names)} {kind} ({_first_names(names)})" for kind, names in kinds.items() if names]
        return "; ".join(descriptions)


def start_from(backbone: Backbone, weights: Weights) -> None:
    """Load the weights of a file into a backbone; tensors missing in the file keep their values."""
    backbone.as_published().load_state_dict(_usable(backbone, weights).taken, strict=False)


def unmatched_tensors(build: Callable[[], Backbone], weights: Weights) -> str:
    """A sentence about the tensors of a file that do not fit the backbone that ``build`` makes; empty: all fit.

    If less than half of the backbone is in the file, that is an error.
    """
    with seeded_torch("overwritten"):
        fit = _usable(build(), weights)
    reason = fit.misfits
    return f"of the weights {os.path.basename(weights.file)}, {len(fit.taken)} tensors fit; {reason}" if reason else ""


def _usable(backbone: Backbone, weights: Weights) -> Fit:
    fit = fitted(backbone, read_weights(weights))
    if fit.share < 0.5:
        name = backbone.describe()["name"]
        raise UserError(
            f"the weights {weights.file} do not fit backbone '{name}': {fit.share:.0%} of its tensors are there; "
            f"{fit.misfits}"
        )
    return fit


def fitted(backbone: Backbone, tensors: Mapping[str, Tensor]) -> Fit:
    """Match the tensors of a file with the backbone's, by name after a common prefix."""
    expected = backbone.as_published().state_dict()
    prefix = _prefix(tensors, expected)
    under = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    elsewhere = [name for name in tensors if _left_out(name, prefix)]
    return replace(_by_name(expected, backbone.adapted(under)), elsewhere=elsewhere)


def _left_out(name: str, prefix: str) -> bool:
    """Whether an entry belongs neither to the backbone (by its prefix) nor to a classifier."""
    return not name.startswith(prefix) and _CLASSIFIERS.isdisjoint(name.split("."))


def _prefix(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """The prefix (``module.``, ``net.backbone.``) that precedes most of the backbone's names."""
    votes: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        votes.update(
            ".".join([*parts[:start], ""]) for start in range(len(parts)) if ".".join(parts[start:]) in expected
        )
    return max(votes, key=lambda prefix: (votes[prefix], -prefix.count(".")), default="")


def _by_name(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Fit:
    shared = [name for name in expected if name in tensors]
    other = {name for name in shared if not _fits(expected[name], tensors[name])}
    return Fit(
        taken={name: tensors[name] for name in shared if name not in other},
        needed=len(_without_counters(expected)),
        missing=[name for name in _without_counters(expected) if name not in tensors],
        unexpected=[name for name in tensors if name not in expected and not _is_of_classifier(name)],
        misshapen=[
            f"{name}: {list(tensors[name].shape)} instead of {list(expected[name].shape)}" for name in sorted(other)
        ],
    )


def _fits(expected: Tensor, tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.is_floating_point() == expected.is_floating_point()
    return plain and tensor.shape == expected.shape


def _kind(name: str) -> str:
    """``weight``, ``bias``, ``running_mean``, …"""
    return name.rpartition(".")[2]


def _is_of_classifier(name: str) -> bool:
    return name.partition(".")[0] in _CLASSIFIERS


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if _kind(name) != _COUNTER}


def _first_names(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:100] for name in names[:_NAMED]) + more
