"""Images that are held out of training: which they are, and what a model makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..data.sources.imageset import ImageSet
from ..keys import derive
from .calibration import calibrate
from .model import Model
from .predictor import Predictor
from .seen import seen_after
from .usage import STEPS, Calibration, Change, Kind, Usage

HELD_FROM = 20
"""Images that a class must have before some are held out."""


def held_out(images: ImageSet, classes: tuple[str, ...], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which images are held out: this share of every class that has enough of them, chosen by its name."""
    chosen = np.zeros(len(images), dtype=np.bool_)
    for label, name in enumerate(classes):
        own = np.flatnonzero(images.labels == label)
        if len(own) >= HELD_FROM:
            order = np.random.default_rng(derive(seed, "held out", name)).permutation(len(own))
            chosen[own[order[: round(share * len(own))]]] = True
    return chosen


def measured(
    predictor: Predictor, held: ImageSet | None
) -> tuple[tuple[float | None, ...], tuple[int, ...], Calibration | None]:
    """Accuracy by class, images by class, and calibration, from images that were held out."""
    classes = len(predictor.classes)
    if held is None or not len(held):
        return (None,) * classes, (0,) * classes, None
    scores, labels = predictor.scores(held), torch.from_numpy(held.labels)
    right, counts = scores.argmax(dim=1) == labels, held.counts(classes)
    accuracy = tuple(_percent(right[labels == label]) for label in range(classes))
    fit = calibrate(scores, labels)
    best = fit.likely.max(dim=1).values.clamp(0, 1)
    thresholds = [step / STEPS for step in range(STEPS + 1)]
    calibration = Calibration(
        readout=predictor.readouts[0],
        temperature=fit.temperature,
        images=len(held),
        error_before=fit.error_before,
        error_after=fit.error_after,
        below=tuple(float((best < threshold).double().mean()) for threshold in thresholds),
        right=tuple(_percent(right[best >= threshold]) for threshold in thresholds),
    )
    return accuracy, tuple(counts.tolist()), calibration


def _percent(right: Tensor) -> float | None:
    """How many of some images are right; None: there are none."""
    return float(100 * right.double().mean()) if len(right) else None


def joined(one: ImageSet | None, other: ImageSet | None) -> ImageSet | None:
    """Both, by class, where there are both."""
    if not (one and other):
        return one or other
    both = one.join(other)
    return both.subset(np.argsort(both.labels, kind="stable"))


def usage_after(
    model: Model, predictor: Predictor, learnt: ImageSet | None, aside: ImageSet | None, done: Change
) -> Usage:
    """What a model knows of itself after it has learnt images of a user's own, or forgotten classes (None).

    ``aside``: those that were held out now.
    """
    before = model.usage or Usage(images=(), held=(), accuracy=(), calibration=None, changes=())
    # Of classes that were not learnt in this way, but of a stream, the images are not counted.
    images = np.zeros(len(model.classes), dtype=np.int64) if learnt is None else learnt.counts(len(model.classes))
    images[: len(before.images)] += np.array(before.images, dtype=np.int64)
    accuracy, held, calibration = measured(predictor, model.held.images)
    return Usage(
        images=tuple(images.tolist()),
        held=held,
        accuracy=accuracy,
        calibration=calibration,
        changes=(*before.changes, done),
        seen=seen_after(model, learnt, aside),
    )


def change(what: Kind, classes: Sequence[str], images: int, seconds: float) -> Change:
    """Something that was done just now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Change(what=what, when=now, classes=tuple(classes), images=images, seconds=round(seconds, 3))
