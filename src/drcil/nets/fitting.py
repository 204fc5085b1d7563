"""Weights into a backbone: which tensors of a file are which of its own, and what did not fit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import UserError
from ..keys import randomness
from .features import Backbone
from .weights import Entries, Weights, read_weights

_CLASSIFIERS = frozenset(
    ("fc", "_fc", "classifier", "head", "head_dist", "heads", "last_linear", "linear", "logits", "output")
)
"""How programs call the layers behind the features: these are never taken, and their absence is no misfit."""
_COUNTER = "num_batches_tracked"
"""What old files lack, and nothing depends on."""
_NAMED = 3


@dataclass(frozen=True)
class Fit:
    """What a file has for a backbone."""

    taken: dict[str, Tensor]
    """By the backbone's own names."""
    needed: int
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    misshapen: Sequence[str] = ()
    """Those of another shape, with both shapes."""
    elsewhere: Sequence[str] = ()
    """Those of other parts of what was saved, beside the backbone and its classifier."""
    by_order: bool = False
    """Whether the names said nothing, and the order of the tensors did."""

    @property
    def share(self) -> float:
        return sum(not name.endswith(_COUNTER) for name in self.taken) / self.needed

    @property
    def misfits(self) -> str:
        """What did not fit, or how it was made to fit; empty: everything fitted by name."""
        kinds = {
            "missing": self.missing,
            "not expected": self.unexpected,
            "of another shape": self.misshapen,
            "of other parts left out": self.elsewhere,
        }
        told = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
        if self.by_order:
            told.append("their names are another program's, so they were taken in their order")
        return "; ".join(told)


def start_from(backbone: Backbone, weights: Weights) -> None:
    """Put the weights of a file into a backbone; what it does not have stays as it is."""
    backbone.as_published().load_state_dict(_usable(backbone, weights).taken, strict=False)


def misfits(build: Callable[[], Backbone], weights: Weights) -> str:
    """A sentence about what of a file does not fit the backbone that ``build`` makes; empty: all of it fits.

    If less than half of the backbone is in the file, that is an error.
    """
    with randomness("overwritten"):
        fit = _usable(build(), weights)
    told = fit.misfits
    return f"of the weights {os.path.basename(weights.file)}, {len(fit.taken)} tensors fit; {told}" if told else ""


def _usable(backbone: Backbone, weights: Weights) -> Fit:
    fit = fitted(backbone, read_weights(weights))
    if fit.share < 0.5:
        name = backbone.describe()["name"]
        raise UserError(
            f"the weights {weights.file} do not fit backbone '{name}': {fit.share:.0%} of its tensors are there; "
            f"{fit.misfits}"
        )
    return fit


def fitted(backbone: Backbone, entries: Entries) -> Fit:
    """What of a file is which tensor of the backbone: by name behind a common prefix, else by order and shape."""
    own = backbone.as_published().state_dict()
    prefix = _prefix(entries.tensors, own)
    under = {name.removeprefix(prefix): one for name, one in entries.tensors.items() if name.startswith(prefix)}
    named = _by_name(own, backbone.adapted(under))
    if named.share < 0.5 and entries.in_order:
        return _by_order(own, entries.tensors) or named
    return replace(named, elsewhere=[name for name in entries.tensors if _left_out(name, prefix)])


def _left_out(name: str, prefix: str) -> bool:
    """Whether an entry is neither the backbone's, which stands behind the prefix, nor a classifier's."""
    return not name.startswith(prefix) and _CLASSIFIERS.isdisjoint(name.split("."))


def _prefix(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """The prefix (``module.``, ``net.backbone.``) behind which most names are the backbone's."""
    votes: Counter[str] = Counter()
    for name in given:
        parts = name.split(".")
        votes.update(".".join([*parts[:start], ""]) for start in range(len(parts)) if ".".join(parts[start:]) in own)
    return max(votes, key=lambda one: (votes[one], -one.count(".")), default="")


def _by_name(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Fit:
    shared = [name for name in own if name in given]
    other = {name for name in shared if not _alike(own[name], given[name])}
    return Fit(
        taken={name: given[name] for name in shared if name not in other},
        needed=len(_without_counters(own)),
        missing=[name for name in _without_counters(own) if name not in given],
        unexpected=[name for name in given if name not in own and not _of_classifier(name)],
        misshapen=[f"{name}: {list(given[name].shape)} instead of {list(own[name].shape)}" for name in sorted(other)],
    )


def _by_order(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Fit | None:
    """Tensor by tensor in the order of both, if kinds and shapes agree to the end, and only a classifier is left."""
    names, others = list(_without_counters(own)), list(_without_counters(given))
    rest = others[len(names) :]
    if len(others) < len(names) or not all(_of_classifier(name) for name in rest):
        return None
    pairs = list(zip(names, others, strict=False))
    if not all(_kind(one) == _kind(other) and _alike(own[one], given[other]) for one, other in pairs):
        return None
    return Fit(taken={one: given[other] for one, other in pairs}, needed=len(names), by_order=True)


def _alike(own: Tensor, given: Tensor) -> bool:
    plain = given.layout == torch.strided and given.is_floating_point() == own.is_floating_point()
    return plain and given.shape == own.shape


def _kind(name: str) -> str:
    """``weight``, ``bias``, ``running_mean``, …"""
    return name.rpartition(".")[2]


def _of_classifier(name: str) -> bool:
    return name.partition(".")[0] in _CLASSIFIERS


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if _kind(name) != _COUNTER}


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:100] for name in names[:_NAMED]) + more
