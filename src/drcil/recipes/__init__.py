"""Recipes: the settings of a method; and profiles: named sets of run options. Both are TOML, by kind of data.

Over ``[common]`` comes the table of the kind of data, or ``[default]`` for a kind that has none. A kind's table may say
``like = "other"``: it then starts from that other table. What a recipe has for a stream comes last: for a cut in
``[streams.b0-20]``, then for one stream alone in ``[streams.imagenet100-b0-20]``. Before both, ``[streams.lt]`` is for
all long-tailed streams and ``[streams.lt-ordered]`` for those of one scenario. A stage in a table of streams may say
``like = "name"``: it then has the schedule of that name in ``schedules.toml``, by kind of data as well.

Then comes the family of the backbone. ``schedules.toml`` has a schedule for ``transformer``, by kind of data, which is
laid over every stage; rates keep their proportion to that of the stage ``first``. A stage that names its optimiser is
left as it is: it is meant for any backbone, or the recipe for this family. What the recipe itself has in
``[backbones.transformer]`` comes last.

A run may ask for a schedule by name; ``named_schedules.toml`` has them, by family of backbones and kind of data. It is
laid over the same stages, behind everything else.

drcil's own recipes are asked for by name. A method that lives outside the package gives the path of its own file.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from ..errors import UserError, unknown
from ..nets.features import Family
from ..reading import read_toml
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

    ``recipe``: its name or path; ``schedule``: the name of one for all stages that train a backbone, None: their own.
    """
    tables = _read_recipe(recipe)
    kinds = recipe_kinds(recipe)
    if kind not in kinds and DEFAULT not in kinds:
        raise UserError(
            f"recipe '{recipe}' says nothing of data of kind '{kind}' and has no [{DEFAULT}]; "
            f"it has: {', '.join(kinds)}"
        )
    settings = _of_kind(tables, kind, f"recipe '{recipe}'")
    of_streams = tables.get(STREAMS, {}) if stream else {}
    tail = parse_stream(stream).tail if of_streams and stream else None
    wide = ["lt", f"lt-{tail.scenario}"] if tail else []
    # A name ends in its cut, so of two keys that fit the longer one is the whole name.
    narrow = sorted((key for key in of_streams if f"-{stream}".endswith(f"-{key}")), key=len)
    for key in (*(key for key in wide if key in of_streams), *narrow):
        settings = merge(settings, _with_schedules(of_streams[key], kind, f"recipe '{recipe}': [{STREAMS}.{key}]"))
    for key in tables.get(BACKBONES, {}):
        if key not in get_args(Family):
            raise unknown(f"family of backbones in recipe '{recipe}'", key, get_args(Family))
    covered = [
        name
        for name, stage in settings.items()
        if isinstance(stage, Mapping) and "epochs" in stage and "optimizer" not in stage
    ]
    shared = _read("schedules.toml").get(family)
    if shared is not None:
        settings = _laid_over(settings, covered, _of_kind(shared, kind, f"schedule '{family}'"))
    settings = merge(settings, tables.get(BACKBONES, {}).get(family, {}))
    schedule = known_schedule(schedule)
    if schedule is not None:
        over = _of_kind(named_schedules()[schedule].get(family, {}), kind, f"schedule '{schedule}'")
        settings = _laid_over(settings, covered, over)
    return settings


def named_schedules() -> dict[str, Any]:
    """The schedules that a run may ask for, by name."""
    return _read("named_schedules.toml")


def known_schedule(name: str | None) -> str | None:
    """The name of a schedule, which must be known; None for that of the recipe, by this name or by none."""
    if name is None or name == RECIPE:
        return None
    if name not in named_schedules():
        raise unknown("schedule", name, [*named_schedules(), RECIPE])
    return name


def _laid_over(settings: Mapping[str, Any], covered: Sequence[str], schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, the covered ones of their stages with a schedule over their own."""
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
    known, stages = _read("schedules.toml"), {}
    for name, stage in table.items():
        like = stage.get(LIKE) if isinstance(stage, Mapping) else None
        if like is not None:
            if like not in known:
                raise UserError(f"{where}: '{name}' cannot be like '{like}'; it can be like: {', '.join(known)}")
            rest = {key: value for key, value in stage.items() if key != LIKE}
            stages[name] = merge(_of_kind(known[like], kind, where), rest)
    return {**table, **stages}


def recipe_kinds(recipe: str | Path) -> list[str]:
    """The kinds of data that a recipe has a table for, ``default`` among them."""
    return sorted(_read_recipe(recipe).keys() - {COMMON, STREAMS, BACKBONES})


def load_profile(name: str, kind: str, family: Family | None = None) -> dict[str, Any]:
    """The run options of a profile for a kind of data; an option the user gives himself goes before.

    ``family``: of the backbones that the method needs; None: any will do.
    """
    profiles = _read("profiles.toml")
    if name not in profiles:
        raise unknown("profile", name, profiles)
    options = _of_kind(profiles[name], kind, f"profile '{name}'")
    transformer = options.pop("transformer", None)
    if family == "transformer":
        options.pop("backbone", None)
        options |= {} if transformer is None else {"backbone": transformer}
    return options


def _of_kind(tables: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """What all kinds have in common, and over it what is said of this one, or by default."""
    own = next((_table(tables, name, where) for name in (kind, DEFAULT) if name in tables), {})
    return merge(tables.get(COMMON, {}), own)


def _table(tables: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    """A kind's own table, over the one it is like."""
    own = dict(tables[kind])
    like = own.pop(LIKE, None)
    if like is None:
        return own
    others = {name: table for name, table in tables.items() if name not in (kind, COMMON, STREAMS, BACKBONES)}
    if like not in others:
        raise UserError(f"{where}: [{kind}] cannot be like '{like}'; it can be like: {', '.join(others) or 'nothing'}")
    return merge(_table(others, like, where), own)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on top, tables within tables likewise."""
    merged = dict(base)
    for key, value in over.items():
        own = merged.get(key)
        merged[key] = merge(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def dotted(tables: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted names, those of tables within tables too.

    >>> dict(dotted({"alpha": 0.2, "later": {"lr": 0.1}}))
    {'alpha': 0.2, 'later.lr': 0.1}
    """
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    tables = _read(f"{recipe}.toml") if isinstance(recipe, str) else read_toml(recipe)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UserError(f"recipe '{recipe}': '{name}' stands outside of all tables; put it into [{COMMON}]")
    return tables


@functools.cache
def _read(file: str) -> dict[str, Any]:
    """One of the package's own files, for all who ask; nobody changes it."""
    try:
        return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"drcil has no recipe '{file}'; a method from outside gives its own file") from None
