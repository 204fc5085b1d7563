"""Recipes: the settings of a method on a kind of data; and profiles: named sets of run options. All TOML.

The recipes here are asked for by name. A method that lives outside the package gives the path of its own file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown


def load_recipe(recipe: str | Path, kind: str) -> dict[str, Any]:
    """The settings for a kind of data, by a recipe's name or path: what all kinds share, then the kind's own."""
    settings = _read_recipe(recipe)
    if kind not in settings:
        known = ", ".join(recipe_kinds(recipe))
        raise UserError(f"recipe '{recipe}' says nothing of data of kind '{kind}'; it has: {known}")
    return merge(settings.get("common", {}), settings[kind])


def recipe_kinds(recipe: str | Path) -> list[str]:
    """The kinds of data that a recipe has settings for."""
    return sorted(_read_recipe(recipe).keys() - {"common"})


def load_profile(name: str) -> dict[str, Any]:
    """Run options by profile name; an option the user gives himself goes before."""
    profiles = _read("profiles.toml")
    if name not in profiles:
        raise unknown("profile", name, profiles)
    return dict(profiles[name])


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on top, tables within tables likewise."""
    merged = dict(base)
    for key, value in over.items():
        own = merged.get(key)
        merged[key] = merge(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    return _read(f"{recipe}.toml") if isinstance(recipe, str) else _read_file(recipe)


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the recipe {path} is not valid TOML: {error}") from None
