"""What the endpoints answer, as JSON; the OpenAPI description is made from these."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """Why a request was not carried out."""

    error: str


class Likely(BaseModel):
    """A class and how probable it is."""

    name: str = Field(serialization_alias="class")
    probability: float


class Seen(BaseModel):
    """What one image shows, or why it cannot be read."""

    file: str | None
    """As the client called it."""
    label: str | None = None
    """The most probable class; none below the threshold."""
    classes: list[Likely] = []
    nearest: list[str] = []
    """Addresses of the images of that class, among those the model remembers, that look most alike."""
    error: str | None = None


class Predictions(BaseModel):
    version: str
    """The version of the model that answered."""
    images: list[Seen]


class Known(BaseModel):
    """A class, what it was learnt from, and the percentage of held-out images of it that are recognised."""

    name: str = Field(serialization_alias="class")
    images: int | None
    accuracy: float | None


class Classes(BaseModel):
    version: str
    classes: list[Known]


class Health(BaseModel):
    status: str
    model: str
    version: str
    classes: int
    calibrated: bool
    teaches: bool
    collects: bool
    token: bool
    """Whether one is wanted."""
    learning: bool


class Skipped(BaseModel):
    file: str | None
    error: str


class Taken(BaseModel):
    """How many images were taken, and which were not."""

    label: str
    images: int
    skipped: list[Skipped]


class Correction(BaseModel):
    label: str
    known: bool
    """Whether the model knows the class."""
    images: int


class Corrections(BaseModel):
    corrections: list[Correction]
