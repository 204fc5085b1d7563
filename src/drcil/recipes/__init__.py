"""Recipes: the settings of a method on a kind of data; and profiles: named sets of run options. All TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ..errors import UserError, unknown


def load_recipe(name: str, kind: str) -> dict[str, Any]:
    """The settings for a kind of data: what all kinds share, then what is the kind's own."""
    recipe = _read(f"{name}.toml")
    if kind not in recipe:
        raise UserError(f"method '{name}' has no recipe for data of kind '{kind}'; it has: {_listed(recipe)}")
    return merge(recipe.get("common", {}), recipe[kind])


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


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))


def _listed(recipe: Mapping[str, Any]) -> str:
    return ", ".join(sorted(kind for kind in recipe if kind != "common"))
