"""Probabilities that mean something: of images that are given 80 % for their class, 80 % should be right.

Scores z become probabilities softmax(z / T). The temperature T is fitted on images that were not trained on; it changes
no ranking. The images that chose it would flatter it, so that each is judged by a temperature that others chose.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

BINS = 15
_SHARPEST, _FLATTEST = 1e-6, 1e3
"""The bounds of T, in spreads of the scores. Far beyond the upper one 32 bits would not tell probabilities apart."""
_HALVINGS = 40
_FOLDS = 5
"""Groups of images: each is judged by a temperature that was fitted on the others."""


class Fit(NamedTuple):
    """A temperature, and the expected calibration error in percent without it and with it."""

    temperature: float
    error_before: float
    error_after: float
    likely: Tensor
    """The probabilities (N, classes) by which it is judged: of each image by a temperature that others chose."""


def calibrate(scores: Tensor, labels: Tensor) -> Fit:
    """The temperature for scores (N, classes) of images with these labels. Images of a class stand together."""
    before, likely = scores.double().softmax(dim=1), _by_others(scores.double(), labels)
    temperature = fit_temperature(scores, labels)
    return Fit(temperature, calibration_error(before, labels), calibration_error(likely, labels), likely)


def _by_others(scores: Tensor, labels: Tensor) -> Tensor:
    """Probabilities, in each of some groups by the temperature that the others choose. All groups have all classes."""
    likely = torch.empty_like(scores)
    group = torch.arange(len(labels)) % _FOLDS
    for number in range(min(_FOLDS, len(labels))):
        inside = group == number
        temperature = fit_temperature(scores[~inside], labels[~inside])
        likely[inside] = (scores[inside] / temperature).softmax(dim=1)
    return likely


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The T for which the labels are most likely.

    The negative log likelihood is convex in s = 1 / T. Its slope, E[Σ p_c z_c] - E[Σ q_c z_c], rises with s, and its
    zero is found by halving. q is the label with a little doubt: (n + 1) / (n + 2) for the true class, the rest for the
    others alike. Without it a few images that are all right would call for complete certainty.
    """
    count, classes = scores.shape
    if count == 0 or classes < 2:
        return 1.0
    values = scores.double() - scores.double().mean(dim=1, keepdim=True)
    spread = float(values.abs().mean())
    if spread == 0:
        return 1.0
    doubt = 1 / (count + 2)
    target = torch.full_like(values, doubt / (classes - 1))
    target.scatter_(1, labels[:, None], 1 - doubt)
    aim = (target * values).sum(dim=1).mean()
    low, high = 1 / (spread * _FLATTEST), 1 / (spread * _SHARPEST)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        slope = ((values * middle).softmax(dim=1) * values).sum(dim=1).mean() - aim
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The expected calibration error in percent.

    Images are sorted into equal intervals of the probability that the best class has. Of each interval the distance
    between the mean probability and the share that is right counts by its number of images.
    """
    best = probabilities.max(dim=1)
    right = (best.indices == labels).double()
    interval = (best.values.double() * bins).ceil().clamp(1, bins).long() - 1
    excess = torch.zeros(bins, dtype=torch.float64).index_add_(0, interval, best.values.double() - right)
    return float(100 * excess.abs().sum() / len(labels))
