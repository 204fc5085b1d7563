"""Herding: which images of a class stand for it best."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError

_TIE = 1e-12
"""Herding scores closer than this are equal: above the rounding of float64, far below that of float32 features."""


def herd(features: Tensor, m: int) -> Tensor:
    """Positions of the m images (all, if there are fewer) whose running mean follows the class mean best.

    With x the features divided by their norm + 1e-8 and μ their mean, the k-th choice is the x not yet chosen that
    minimises ‖μ − (x + Σ chosen) / k‖; ties go to the lowest position. The result is in order of choice, so that
    every prefix of it is what a smaller m would have given.

    Multiplied by k and squared, the criterion is ‖x‖² − 2 x·(kμ − Σ chosen) plus what all x share: one
    matrix-vector product per choice. It is computed in float64 on the CPU, where rounding is far below ``_TIE``:
    equal images then tie whatever the device, the linear algebra library or the number of threads.
    """
    choices = np.empty(min(m, len(features)), dtype=np.int64)
    if not len(choices):
        return torch.from_numpy(choices)
    if torch.equal(features, features[:1].expand_as(features)) and torch.isfinite(features[0]).all():
        # All tie at every choice: what follows would say the same, slowly.
        return torch.arange(len(choices))
    vectors = features.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(vectors).all():
        raise UserError("exemplars cannot be chosen because some features are not finite numbers: training diverged")
    vectors = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-8)
    mean = vectors.mean(axis=0)
    squares = np.square(vectors).sum(axis=1)
    missing = np.zeros_like(mean)
    for k in range(len(choices)):
        missing += mean
        scores = squares - 2 * (vectors @ missing)
        choice = np.argmax(scores <= scores.min() + _TIE)
        choices[k] = choice
        missing -= vectors[choice]
        squares[choice] = np.inf
    return torch.from_numpy(choices)
