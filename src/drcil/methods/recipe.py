"""Reads recipes and profiles (recipes/*.toml).

Over ``[common]`` comes the table of the kind of data, or ``[default]`` for a kind that has none. A kind's table may say
``like = "other"``: it then starts from that other table. What a recipe has for a stream comes last: for a cut in
``[streams.b0-20]``, then for one stream alone in ``[streams.imagenet100-b0-20]``. Before both, ``[streams.lt]`` is for
all long-tailed streams and ``[streams.lt-ordered]`` for those of one scenario. A stage in a table of streams may say
``like = "name"``: it then has the schedule of that name in ``schedules.toml``, by kind of data as well.

Then comes the family of the backbone. ``schedules.toml`` has a schedule for ``transformer``, by kind of data, which is
laid over every stage; rates keep their proportion to that of the stage ``first``. A stage that names its optimiser is
left as it is: it is meant for any backbone, or the recipe for this family. What the recipe itself has in
``[backbones.transformer]`` comes last.

A run may select a schedule by name; ``named_schedules.toml`` has them, by family of backbones and kind of data. It is
merged over the same stages, after everything else.

Built-in recipes are selected by name. A method outside the package sets the path of its recipe file.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from ..errors import UserError, unknown_name
from ..files import read_toml
from ..nets.backbone import Family
from ..streams.protocols import parse_stream

COMMON, DEFAULT, STREAMS, BACKBONES, LIKE = "common", "default", "streams", "backbones", "like"
RECIPE = "recipe"
"""What to call the schedule that a recipe has."""
_RATES = ("lr", "lr_end", "warmup_lr")


def load_recipe(
    recipe: str | Path,
    kind: str,
    stream: str | None = None,
    family: Family = "convolutional",
    schedule: str | None = None,
) -> dict[str, Any]:
    """The settings for a kind of data, for a stream where images come from one, and for a family of backbones.

    ``recipe``: its name or path; ``schedule``: one for all stages that train a backbone, by name (None: unchanged).
    """
    tables, settings = _read_recipe(recipe), _without_backbone(recipe, kind, stream)
    covered = _leave_optimizer_open(settings)
    shared = _read("schedules.toml").get(family)
    if shared is not None:
        settings = _apply_schedule(settings, covered, _table_for_kind(shared, kind, f"schedule '{family}'"))
    settings = merge(settings, tables.get(BACKBONES, {}).get(family, {}))
    schedule = known_schedule(schedule)
    if schedule is not None:
        over = _table_for_kind(named_schedules()[schedule].get(family, {}), kind, f"schedule '{schedule}'")
        settings = _apply_schedule(settings, covered, over)
    return settings


def backbone_stages(recipe: str | Path, kind: str, stream: str | None = None) -> list[str]:
    """Names of the stages that train a backbone: those for which the recipe leaves the optimiser open.

    A named schedule, and the options ``epochs``, ``lr`` and ``batch_size`` of a run, apply to these stages.
    """
    return _leave_optimizer_open(_without_backbone(recipe, kind, stream))


def _leave_optimizer_open(settings: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, stage in settings.items()
        if isinstance(stage, Mapping) and "epochs" in stage and "optimizer" not in stage
    ]


def _without_backbone(recipe: str | Path, kind: str, stream: str | None) -> dict[str, Any]:
    """The recipe's settings for a kind of data and a stream, before changes for the backbone's family."""
    tables = _read_recipe(recipe)
    kinds = recipe_kinds(recipe)
    if kind not in kinds and DEFAULT not in kinds:
        raise UserError(
            f"recipe '{recipe}' says nothing of data of kind '{kind}' and has no [{DEFAULT}]; "
            f"it has: {', '.join(kinds)}"
        )
    settings = _table_for_kind(tables, kind, f"recipe '{recipe}'")
    of_streams = tables.get(STREAMS, {}) if stream else {}
    tail = parse_stream(stream).tail if of_streams and stream else None
    wide = ["lt", f"lt-{tail.scenario}"] if tail else []
    # A name ends in its cut, so of two keys that fit the longer one is the whole name.
    narrow = sorted((key for key in of_streams if f"-{stream}".endswith(f"-{key}")), key=len)
    for key in (*(key for key in wide if key in of_streams), *narrow):
        settings = merge(settings, _with_schedules(of_streams[key], kind, f"recipe '{recipe}': [{STREAMS}.{key}]"))
    for key in tables.get(BACKBONES, {}):
        if key not in get_args(Family):
            raise unknown_name(f"family of backbones in recipe '{recipe}'", key, get_args(Family))
    return settings


def named_schedules() -> dict[str, Any]:
    """The schedules that a run may ask for, by name."""
    return _read("named_schedules.toml")


def known_schedule(name: str | None) -> str | None:
    """The name of a schedule, which must be known; None for that of the recipe, by this name or by none."""
    if name is None or name == RECIPE:
        return None
    if name not in named_schedules():
        raise unknown_name("schedule", name, [*named_schedules(), RECIPE])
    return name


def _apply_schedule(settings: Mapping[str, Any], covered: Sequence[str], schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with a schedule merged over that of each covered stage."""
    first = settings.get("first", {}).get("lr")
    stages = {}
    for name in covered:
        stage = settings[name]
        share = stage["lr"] / first if first and "lr" in stage else 1.0
        rates = {rate: share * schedule[rate] for rate in _RATES if rate in schedule}
        stages[name] = merge(stage, {**schedule, **rates})
    return {**settings, **stages}


def _with_schedules(table: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """The table, its stages laid over the schedules that they are like."""
    schedules, stages = _read("schedules.toml"), {}
    for name, stage in table.items():
        like = stage.get(LIKE) if isinstance(stage, Mapping) else None
        if like is not None:
            if like not in schedules:
                raise UserError(f"{where}: '{name}' cannot be like '{like}'; it can be like: {', '.join(schedules)}")
            rest = {key: value for key, value in stage.items() if key != LIKE}
            stages[name] = merge(_table_for_kind(schedules[like], kind, where), rest)
    return {**table, **stages}


def recipe_kinds(recipe: str | Path) -> list[str]:
    """The kinds of data that a recipe has a table for, ``default`` among them."""
    return sorted(_read_recipe(recipe).keys() - {COMMON, STREAMS, BACKBONES})


def load_profile(name: str, kind: str, family: Family | None = None) -> dict[str, Any]:
    """The run options of a profile for a kind of data; an option the user gives himself goes before.

    ``family``: of the backbones that the method needs; None: any family.
    """
    profiles = _read("profiles.toml")
    if name not in profiles:
        raise unknown_name("profile", name, profiles)
    options = _table_for_kind(profiles[name], kind, f"profile '{name}'")
    transformer = options.pop("transformer", None)
    if family == "transformer":
        options.pop("backbone", None)
        options |= {} if transformer is None else {"backbone": transformer}
    return options


def _table_for_kind(tables: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """The common table, overridden by the table of this kind or the default table."""
    table = next((_table(tables, name, where) for name in (kind, DEFAULT) if name in tables), {})
    return merge(tables.get(COMMON, {}), table)


def _table(tables: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """The table of a kind, merged over the table that it is like."""
    values = dict(tables[kind])
    like = values.pop(LIKE, None)
    if like is None:
        return values
    others = {name: table for name, table in tables.items() if name not in (kind, COMMON, STREAMS, BACKBONES)}
    if like not in others:
        raise UserError(f"{where}: [{kind}] cannot be like '{like}'; it can be like: {', '.join(others) or 'nothing'}")
    return merge(_table(others, like, where), values)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on top, tables within tables likewise."""
    merged = dict(base)
    for key, value in over.items():
        previous = merged.get(key)
        merged[key] = merge(previous, value) if isinstance(previous, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    tables = _read(f"{recipe}.toml") if isinstance(recipe, str) else read_toml(recipe)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UserError(f"recipe '{recipe}': '{name}' stands outside of all tables; put it into [{COMMON}]")
    return tables


@functools.cache
def _read(file: str) -> dict[str, Any]:
    """A file of the package, cached; callers must not modify it."""
    try:
        return tomllib.loads(files("drcil").joinpath("recipes", file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"drcil has no recipe '{file}'; a method from outside gives its own file") from None
