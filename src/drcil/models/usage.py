"""Record of what a model has learnt.

Accuracy and calibration are measured on held-out images. They are stored with the model, so both can be measured again
after every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..data.image_set import Int64
from ..errors import UserError

STEPS = 100
"""Thresholds are multiples of 1 / STEPS."""

Kind = Literal["learn", "refresh", "forget", "rename"]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0, le=10**12)]
Percent = Annotated[float, Field(ge=0, le=100)]
EachStep = Field(min_length=STEPS + 1, max_length=STEPS + 1)
"""A value for each threshold 0, 0.01, …, 1."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Change(_Form):
    """A change of a model."""

    what: Kind
    when: str
    """UTC, in ISO 8601 format."""
    classes: tuple[str, ...]
    images: Number
    seconds: float = Field(ge=0)

    @classmethod
    def now(cls, what: Kind, classes: Sequence[str], images: int = 0, seconds: float = 0.0) -> Change:
        """A change with the current time."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(what=what, when=when, classes=tuple(classes), images=images, seconds=round(seconds, 3))


_MANY = 100
"""With fewer images than this, a temperature is a rough estimate."""


class Calibration(_Form):
    """How scores of a readout become probabilities, and how accurate these are."""

    readout: str
    temperature: float = Field(gt=0)
    images: int = Field(ge=1)
    """Number of held-out images that the temperature was fitted on."""
    error_before: Percent
    """The expected calibration error at temperature 1."""
    error_after: Percent
    """The same with temperature scaling, cross-validated: no image is scaled by a temperature fitted on it."""
    below: Annotated[tuple[Share, ...], EachStep]
    """For each threshold, the share of these images whose best class is less probable (cross-validated)."""
    right: Annotated[tuple[Percent | None, ...], EachStep]
    """For each threshold, the accuracy on the other images in percent; None if there are none."""

    def summary(self) -> str:
        """Temperature and calibration errors in one sentence."""
        noun = "image" if self.images == 1 else "images"
        text = (
            f"calibrated on {self.images} held-out {noun}: temperature "
            f"{self.temperature:.3g}, expected calibration error {self.error_after:.1f} % (without it "
            f"{self.error_before:.1f} %)"
        )
        return text if self.images >= _MANY else f"{text}; rough estimate ({self.images} {noun})"

    def rejected(self, threshold: float) -> float:
        """The share of known images whose best class is less probable than this."""
        return self.below[round(STEPS * threshold)]

    def accuracy(self, threshold: float) -> float | None:
        """Accuracy in percent on the images whose best class is at least as probable as this."""
        return self.right[round(STEPS * threshold)]


FORGOTTEN = "(forgotten)"


class Usage(_Form):
    """What a model learnt from a user's images, and how accurate it is."""

    images: tuple[Number, ...]
    """How many images each class was learnt from."""
    held: tuple[Number, ...]
    """How many of each class were held out."""
    accuracy: tuple[Percent | None, ...]
    """Accuracy on the held-out images of each class; None if it has none."""
    calibration: Calibration | None
    changes: tuple[Change, ...]

    def select(self, labels: Sequence[int]) -> Usage:
        """The record of some of the classes."""
        columns = {name: getattr(self, name) for name in ("images", "held", "accuracy")}
        update = {name: tuple(column[label] for label in labels) for name, column in columns.items()}
        return self.model_copy(update=update)

    def add_change(self, change: Change) -> Usage:
        return self.model_copy(update={"changes": (*self.changes, change)})

    def hide_forgotten(self, classes: Iterable[str]) -> Usage:
        """The record with the names of forgotten classes replaced by a placeholder."""
        names, changes = set(classes), []
        for change in reversed(self.changes):
            is_renamed = change.what == "rename" and change.classes[-1] in names
            visible = tuple(name if name in names or is_renamed else FORGOTTEN for name in change.classes)
            changes.append(change.model_copy(update={"classes": visible}))
            # Before this change the name meant another class.
            if is_renamed:
                names = names - {change.classes[-1]} | {change.classes[0]}
            elif change.what == "learn":
                names -= {*change.classes}
        return self.model_copy(update={"changes": tuple(reversed(changes))})


UInt64 = npt.NDArray[np.uint64]


class ImageDigests:
    """Digests of all images that a model learnt from or holds out, with their labels; loaded when they are needed."""

    NONE: ClassVar = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64))

    def __init__(self, load: Callable[[], tuple[Int64, UInt64]] = lambda: ImageDigests.NONE) -> None:
        self._load = load

    @cached_property
    def _arrays(self) -> tuple[Int64, UInt64]:
        return self._load()

    def __getstate__(self) -> dict[str, Any]:
        """Arrays are pickled and copied instead of the function that loads them."""
        return {"_arrays": self._arrays}

    @property
    def labels(self) -> Int64:
        return self._arrays[0]

    def pairs(self) -> set[tuple[int, int]]:
        """Label and digest of every image."""
        labels, digests = self._arrays
        return set(zip(labels.tolist(), digests.tolist(), strict=True))

    def add(self, labels: Int64, digests: UInt64) -> ImageDigests:
        """These digests and more, without duplicates."""
        pairs = np.stack(
            [np.append(self.labels, labels).astype(np.uint64), np.append(self._arrays[1], digests)], axis=1
        )
        unique = np.unique(pairs, axis=0)
        return ImageDigests(lambda: (unique[:, 0].astype(np.int64), unique[:, 1]))

    def relabel(self, new_labels: Int64) -> ImageDigests:
        """With new labels by old label, without those whose new label is -1."""

        def load() -> tuple[Int64, UInt64]:
            labels = new_labels[self.labels]
            return labels[labels >= 0], self._arrays[1][labels >= 0]

        return ImageDigests(load)

    def as_tensors(self) -> dict[str, Tensor]:
        labels, digests = self._arrays
        return {"labels": torch.from_numpy(labels), "digests": torch.from_numpy(digests.view(np.int64))}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], classes: int) -> tuple[Int64, UInt64]:
        """The arrays that ``as_tensors`` made, checked."""
        if tensors.keys() != {"labels", "digests"}:
            raise UserError("it must have the tensors 'labels' and 'digests'")
        labels, digests = tensors["labels"], tensors["digests"]
        if labels.ndim != 1 or labels.shape != digests.shape or {labels.dtype, digests.dtype} != {torch.int64}:
            raise UserError("'labels' and 'digests' must be vectors of 64-bit integers of the same length")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise UserError(f"its labels are not those of {classes} classes")
        return labels.numpy(), digests.numpy().view(np.uint64)
