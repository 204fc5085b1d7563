"""Accuracy and calibration of a model on held-out images; temperature scaling.

Scores z become probabilities softmax(z / T). The temperature T is fitted on images that were not trained on; it changes
no ranking. Evaluation is cross-validated: each image is scaled by a temperature fitted on other images.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.image_set import ImageSet
from ..inference import Inference
from .model import Model
from .predictor import Predictor
from .usage import STEPS, Calibration, Change, Usage
from .user_tasks import image_digests

BINS = 15
_SHARPEST, _FLATTEST = 1e-6, 1e3
"""The bounds of T, in spreads of the scores. Far beyond the upper one, probabilities would be equal in 32 bits."""
_HALVINGS = 40
_FOLDS = 5
"""Cross-validation folds."""


class Fit(NamedTuple):
    """A temperature, and the expected calibration error in percent without it and with it."""

    temperature: float
    error_before: float
    error_after: float
    probabilities: Tensor
    """Cross-validated probabilities (N, classes): the temperature for each image is fitted on other images."""


def calibrate(scores: Tensor, labels: Tensor) -> Fit:
    """The temperature for scores (N, classes) of images with these labels. Images are sorted by class."""
    before, probabilities = scores.double().softmax(dim=1), _cross_validated(scores.double(), labels)
    temperature = fit_temperature(scores, labels)
    return Fit(temperature, calibration_error(before, labels), calibration_error(probabilities, labels), probabilities)


def _cross_validated(scores: Tensor, labels: Tensor) -> Tensor:
    """Probabilities of each fold by a temperature fitted on the other folds. All folds have all classes."""
    probabilities = torch.empty_like(scores)
    group = torch.arange(len(labels)) % _FOLDS
    for number in range(min(_FOLDS, len(labels))):
        inside = group == number
        temperature = fit_temperature(scores[~inside], labels[~inside])
        probabilities[inside] = (scores[inside] / temperature).softmax(dim=1)
    return probabilities


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """The T that maximises the likelihood of the labels.

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


def evaluate_held_out(
    predictor: Predictor, held_out: ImageSet | None
) -> tuple[tuple[float | None, ...], tuple[int, ...], Calibration | None]:
    """Accuracy by class, images by class, and calibration, on held-out images."""
    classes = len(predictor.classes)
    if held_out is None or not len(held_out):
        return (None,) * classes, (0,) * classes, None
    scores, labels = predictor.scores(held_out), torch.from_numpy(held_out.labels)
    right, counts = scores.argmax(dim=1) == labels, held_out.counts(classes)
    accuracy = tuple(_percent(right[labels == label]) for label in range(classes))
    fit = calibrate(scores, labels)
    best = fit.probabilities.max(dim=1).values.clamp(0, 1)
    thresholds = [step / STEPS for step in range(STEPS + 1)]
    calibration = Calibration(
        readout=predictor.readouts[0],
        temperature=fit.temperature,
        images=len(held_out),
        error_before=fit.error_before,
        error_after=fit.error_after,
        below=tuple(float((best < threshold).double().mean()) for threshold in thresholds),
        right=tuple(_percent(right[best >= threshold]) for threshold in thresholds),
    )
    return accuracy, tuple(counts.tolist()), calibration


def _percent(right: Tensor) -> float | None:
    """How many of some images are right; None: there are none."""
    return float(100 * right.double().mean()) if len(right) else None


def update_usage(
    model: Model,
    inference: Inference,
    change: Change,
    learnt: ImageSet | None = None,
    validation: ImageSet | None = None,
) -> None:
    """Record a change of a model: the images it learnt and those held out now, and new measurements on all of these."""
    model.held.images = _join_by_class(model.held.images, validation)
    usage = model.usage or Usage(images=(), held=(), accuracy=(), calibration=None, changes=())
    # Images of classes that were learnt from a stream are not counted.
    counts = np.zeros(len(model.classes), dtype=np.int64) if learnt is None else learnt.counts(len(model.classes))
    counts[: len(usage.images)] += np.array(usage.images, dtype=np.int64)
    predictor = Predictor.from_model(model, inference)
    accuracy, held_out, calibration = evaluate_held_out(predictor, model.held.images)
    model.usage = Usage(
        images=tuple(counts.tolist()),
        held=held_out,
        accuracy=accuracy,
        calibration=calibration,
        changes=(*usage.changes, change),
    )
    for images in (learnt, validation):
        if images:
            model.digests = model.digests.add(images.labels, image_digests(images))


def _join_by_class(first: ImageSet | None, second: ImageSet | None) -> ImageSet | None:
    if not first or not second:
        return first or second
    joined = first.join(second)
    return joined.subset(np.argsort(joined.labels, kind="stable"))
