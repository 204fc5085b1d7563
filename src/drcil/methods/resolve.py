"""From a recipe, the name's presets and the user's own values to a method's settings."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import UserError, unknown
from ..nets.features import family_of
from ..recipes import load_recipe, merge
from ..validation import explain
from .settings import Settings
from .spec import MethodSpec


def resolve_settings(
    spec: MethodSpec,
    kind: str,
    given: Mapping[str, Any],
    epochs_scale: float = 1.0,
    stream: str | None = None,
    backbone: str | None = None,
    schedule: str | None = None,
) -> Settings:
    """The settings of a method on a kind of data, and on a stream where images come from one.

    ``backbone``: of whose family they are; None: of the one that the method needs, or convolutional. ``schedule``:
    one by name; None: that of the recipe. ``given`` has dotted keys (``later.epochs``) and goes before all.
    """
    known = setting_keys(spec.build.Settings)
    family = spec.family or "convolutional" if backbone is None else family_of(backbone)
    values: dict[str, Any] = merge(load_recipe(spec.recipe, kind, stream, family, schedule), spec.presets)
    for key, value in given.items():
        if key not in known:
            raise unknown(f"setting of '{spec.name}'", key, known)
        values = merge(values, _nested(key, value))
    try:
        return spec.build.Settings.model_validate(values).scaled(epochs_scale)
    except ValidationError as error:
        raise UserError(f"invalid setting of '{spec.name}': {explain(error)}") from None


def unusual_settings(
    spec: MethodSpec,
    kind: str,
    given: Mapping[str, Any],
    stream: str | None = None,
    backbone: str | None = None,
    schedule: str | None = None,
) -> dict[str, Any]:
    """Of the settings that were given, those that the recipe does not have anyway: without the others it is one run."""
    if not given:
        return {}
    plain, own = (
        resolve_settings(spec, kind, values, 1.0, stream, backbone, schedule).model_dump(mode="json")
        for values in ({}, given)
    )
    return {key: value for key, value in given.items() if _at(plain, key) != _at(own, key)}


def setting_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All keys that ``--set`` accepts: nested models by dotted path."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        keys += setting_keys(inner, f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model behind a field's type, also where it may be None."""
    candidates = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _nested(key: str, value: Any) -> dict[str, Any]:
    """``a.b`` and a value as a table within a table."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _at(values: Any, key: str) -> Any:
    """What a dotted key leads to; None where a table on the way is missing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
