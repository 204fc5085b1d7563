"""``beginning.json``: what a run began with, of which nothing may change before it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..data.identity import DataIdentity, data_identity, difference
from ..disk import write_sealed
from ..errors import UserError
from ..methods import METHODS
from ..reading import is_file, read_sealed
from ..streams.stream import Stream
from ..validation import explain
from .plan import fresh_model
from .settings import CONFIG, RunSettings

BEGINNING = "beginning.json"


class Beginning(BaseModel):
    """The settings that the result depends on, the method's own with those of its recipe, and the data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    resolved: dict[str, Any]
    data: DataIdentity


def write_beginning(directory: Path, settings: RunSettings, stream: Stream) -> None:
    write_sealed(directory / BEGINNING, _now(settings, stream).model_dump(mode="json"))


def read_beginning(directory: Path) -> Beginning:
    if not is_file(directory / BEGINNING):
        raise UserError(f"{directory} cannot be resumed without {BEGINNING}, which tells how it began; restore it")
    try:
        return Beginning.model_validate(read_sealed(directory / BEGINNING))
    except ValidationError as error:
        raise UserError(f"{directory / BEGINNING} does not tell how a run began: {explain(error)}") from None


def require_as_begun(directory: Path, settings: RunSettings, stream: Stream) -> Beginning:
    """How the run began, if everything still is so."""
    before, now = read_beginning(directory), _now(settings, stream)
    require_unchanged(directory, CONFIG, before.settings, now.settings)
    changed = _first_difference(settings_kept(before, settings.method), now.resolved)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be resumed: '{changed}' in the recipe of '{settings.method}' is not what it was when "
            "the run began; start a new run, or restore the recipe"
        )
    changed = difference(before.data, now.data)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be resumed, since the images of '{stream.name}' are not those that it began "
            f"with: {changed}; start a new run, or restore them"
        )
    return before


def require_unchanged(directory: Path, where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A run is a function of its settings: they cannot change halfway."""
    changed = _first_difference(before, now)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be used: '{changed}' in {where} is not what it was when the run began; start a new "
            "run, or restore the file"
        )


def settings_kept(begun: Beginning, method: str) -> dict[str, Any]:
    """The method's settings that the run began with; those that did not exist yet as they are where not given."""
    return completed(begun.resolved, method)


def completed(resolved: dict[str, Any], method: str) -> dict[str, Any]:
    """Settings of a method that were kept, with those that did not exist yet; as they are if they are not its own."""
    try:
        return METHODS[method].build.Settings.model_validate(resolved).model_dump(mode="json")
    except (UserError, ValidationError):
        return resolved


def _now(settings: RunSettings, stream: Stream) -> Beginning:
    resolved = fresh_model(settings, stream).method.settings.model_dump(mode="json")
    return Beginning(settings=settings.choices(), resolved=resolved, data=data_identity(stream.dataset))


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The name of the first entry that differs, inside a group of entries by its own name; None where all agree."""
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one != other:
            inside = isinstance(one, Mapping) and isinstance(other, Mapping) and _first_difference(one, other)
            return inside or name
    return None
