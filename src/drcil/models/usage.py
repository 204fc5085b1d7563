"""What a model that people use knows of itself: what it was taught and when, and how far it can be trusted.

Accuracy and calibration are measured on images that were held out of training and that the model carries with it, so
that they are known again after everything it learns.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

QUANTILES = 101

Kind = Literal["learn", "refresh", "forget", "rename"]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0, le=10**12)]
Percent = Annotated[float, Field(ge=0, le=100)]


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


class Calibration(_Form):
    """How scores of a readout become probabilities, and what is known of these."""

    readout: str
    temperature: float = Field(gt=0)
    images: int = Field(ge=1)
    """That were held out, and it was fitted on."""
    error_before: Percent
    """The expected calibration error at temperature 1."""
    error_after: Percent
    confidence: Annotated[tuple[Share, ...], Field(min_length=QUANTILES, max_length=QUANTILES)]
    """Of these images, the quantiles of the probability of the best class, in steps of a hundredth."""

    def rejected(self, threshold: float) -> float:
        """The share of known images whose best class is less probable than this."""
        return float(np.interp(threshold, self.confidence, np.linspace(0, 1, QUANTILES), left=0.0, right=1.0))


class Usage(_Form):
    images: tuple[Number, ...]
    """How many images each class was learnt from."""
    held: tuple[Number, ...]
    """How many of each class were held out."""
    accuracy: tuple[Percent | None, ...]
    """On those of each class that were held out; none without any."""
    calibration: Calibration | None
    changes: tuple[Change, ...]
