"""A method's settings: every number it depends on."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from ..schedules import Schedule


class Settings(BaseModel):
    """A method's settings. Fields that are schedules are its stages."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    augment: str | None = Field(default=None, min_length=1)
    """The training augmentation; None: that of the data."""

    def schedules(self) -> dict[str, Schedule]:
        return {name: value for name, value in self if isinstance(value, Schedule)}

    def scaled(self, scale: float) -> Settings:
        """The same settings with ``scale`` times the epochs in every stage."""
        return self.model_copy(update={name: own.scaled(scale) for name, own in self.schedules().items()})


AnySettings = Settings
"""The same class under a name that ``Method.Settings`` does not hide."""
