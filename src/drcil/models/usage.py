"""What a model that people use knows of itself: what it was taught and when, and how far it can be trusted.

Accuracy and calibration are measured on images that were held out of training and that the model carries with it, so
that they are known again after everything it learns.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

STEPS = 100
"""A threshold is known to a hundredth."""

Kind = Literal["learn", "refresh", "forget", "rename"]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0, le=10**12)]
Percent = Annotated[float, Field(ge=0, le=100)]
EachStep = Field(min_length=STEPS + 1, max_length=STEPS + 1)
"""A value for each threshold 0, 0.01, …, 1."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Change(_Form):
    """Something that was done to a model."""

    what: Kind
    when: str
    """In UTC, as ISO 8601 has it."""
    classes: tuple[str, ...]
    images: Number
    seconds: float = Field(ge=0)


_MANY = 100
"""Images from which a temperature is more than a rough guess."""


class Calibration(_Form):
    """How scores of a readout become probabilities, and what is known of these."""

    readout: str
    temperature: float = Field(gt=0)
    images: int = Field(ge=1)
    """That were held out, and it was fitted on."""
    error_before: Percent
    """The expected calibration error at temperature 1."""
    error_after: Percent
    """The same with a temperature, each image judged by one that other images chose."""
    below: Annotated[tuple[Share, ...], EachStep]
    """Of these images, judged in the same way, the share whose best class is less probable than each threshold."""
    right: Annotated[tuple[Percent | None, ...], EachStep]
    """Of the others, how many are classified right; none where there are no others."""

    def told(self) -> str:
        """All of that but for thresholds, for readers."""
        said = (
            f"calibrated on {self.images} held-out image{'' if self.images == 1 else 's'}: temperature "
            f"{self.temperature:.3g}, expected calibration error {self.error_after:.1f} % (without it "
            f"{self.error_before:.1f} %)"
        )
        return said if self.images >= _MANY else f"{said}; so few images give a rough guess, on the side of doubt"

    def rejected(self, threshold: float) -> float:
        """The share of known images whose best class is less probable than this."""
        return self.below[round(STEPS * threshold)]

    def accuracy(self, threshold: float) -> float | None:
        """Percent right of the images whose best class is at least as probable as this."""
        return self.right[round(STEPS * threshold)]


class Usage(_Form):
    images: tuple[Number, ...]
    """How many images each class was learnt from."""
    held: tuple[Number, ...]
    """How many of each class were held out."""
    accuracy: tuple[Percent | None, ...]
    """On those of each class that were held out; none without any."""
    calibration: Calibration | None
    changes: tuple[Change, ...]
    seen: tuple[Annotated[str, Field(pattern="^([0-9a-f]{16})*$")], ...] = ()
    """Digests of the images that each class was learnt from and of those held out, one after the other."""
