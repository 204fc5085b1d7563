"""The table of methods known by name, and how a class or a combination gets into it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..arguments import text as given
from ..data.datasets.dataset import DataSpec
from ..errors import UserError, unknown
from ..nets.features import Family, family_of
from ..registry import Registry
from .base import Method


@dataclass(frozen=True)
class Addon:
    """What ``+NAME`` adds to any method that can take it, besides the add-ons that a class has of its own."""

    summary: str
    takers: str
    """Which methods can take it, in a word or two."""
    build: Callable[[type[Method]], type[Method]]
    """From a method's class to that of the method with the add-on."""
    obstacle: Callable[[type[Method]], str | None] = lambda build: None
    """Why a class cannot take it; None: it can."""


ADDONS: Registry[Addon] = Registry("add-on", "drcil.methods")


@dataclass(frozen=True)
class MethodSpec:
    """A name under which a method can be asked for: a class, its recipe, and settings that the name fixes."""

    name: str
    build: type[Method]
    summary: str
    paper: str
    year: int
    recipe: str | Path
    """The name of one of drcil's own, or a file."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    alias_of: str | None = None
    """The name of the method that is trained, where this one is another name for a readout of it."""
    readout: str | None = None
    """The readout that this name leads with; None: the method's first."""
    family: Family | None = None
    """The family of backbones that it needs; None: any will do."""

    def backbone(self, data: DataSpec, asked: str | None = None) -> str:
        """The backbone that it learns such data with: the one asked for, or else the data's own."""
        usual = data.transformer if self.family == "transformer" else data.backbone
        name = usual if asked is None else asked
        family = family_of(name)
        if self.family not in (None, family):
            raise UserError(
                f"'{self.name}' needs a {self.family} backbone, but '{name}' is a {family} one; choose another, such "
                f"as '{usual}', or omit it"
            )
        return name

    @property
    def head(self) -> str:
        """The kind of head, unless another is asked for."""
        return str(self.presets.get("head", self.build.head))

    @property
    def readouts(self) -> tuple[str, ...]:
        """The ways to read class scores, first the one that leads."""
        known = self.build.readout_names
        return known if self.readout is None else tuple(dict.fromkeys((self.readout, *known)))

    @property
    def addons(self) -> tuple[str, ...]:
        """What it can be combined with: add-ons of its own, and those for all methods that it can take."""
        if self.alias_of is not None:
            return ()
        general = (name for name, addon in ADDONS.items() if addon.obstacle(self.build) is None)
        return tuple(dict.fromkeys((*self.build.addons(self.presets), *general)))

    def combined_with(self, addon: str) -> MethodSpec:
        """The method with an add-on: another head, one more remedy, another stage."""
        if addon not in self.addons:
            known = ", ".join(f"{self.name}+{one}" for one in self.addons)
            hint = f"; known: {known}" if known else " or anything else"
            if self.alias_of is None and addon in ADDONS:
                hint = f": {ADDONS[addon].obstacle(self.build)}"
            raise UserError(f"'{self.name}' cannot be combined with '{addon}'{hint}")
        combined = replace(self, name=f"{self.name}+{addon}", summary=f"{self.summary}, with {addon}")
        presets = self.build.addons(self.presets)
        if addon in presets:
            return replace(combined, presets={**self.presets, **presets[addon]})
        return replace(combined, build=ADDONS[addon].build(self.build))

    def require_readout(self, name: str) -> None:
        if name not in self.readouts:
            raise unknown(f"readout of '{self.name}'", name, self.readouts)


class MethodTable(Registry[MethodSpec]):
    """Methods by name. ``NAME+ADDON`` that nobody registered is the method combined with its add-on."""

    def __getitem__(self, name: str) -> MethodSpec:
        base, *addons = name.split("+")
        if not addons or name in self:
            return super().__getitem__(name)
        return functools.reduce(MethodSpec.combined_with, addons, super().__getitem__(base))

    def origin(self, name: str) -> str | None:
        self[name]
        return super().origin(name if name in self else name.partition("+")[0])


METHODS = MethodTable("method", "drcil.methods")


def entries_of(name: str) -> list[tuple[Registry[Any], str]]:
    """Where the parts of a method's name are registered: the method, and the add-ons that are for all methods."""
    if name in METHODS:
        return [(METHODS, name)]
    base, *addons = name.split("+")
    return [(METHODS, base), *((ADDONS, addon) for addon in addons)]


M = TypeVar("M", bound=type[Method])


def method(name: str, *, paper: str, year: int, recipe: str | Path | None = None) -> Callable[[M], M]:
    """Register a class under a name; its docstring's first line is the summary. None: the recipe of the same name."""

    def keep(cls: M) -> M:
        register_preset(name, cls, summary=_first_line(cls), paper=paper, year=year, recipe=recipe or name)
        return cls

    return keep


def register_preset(
    name: str,
    build: type[Method],
    *,
    summary: str,
    paper: str,
    year: int,
    recipe: str | Path,
    alias_of: str | None = None,
    readout: str | None = None,
    family: Family | None = None,
    **presets: Any,
) -> None:
    """Register a name for a class with some settings fixed: how combinations get names without copies of code."""
    family = family or build.family
    METHODS.register(name)(MethodSpec(name, build, summary, paper, year, recipe, presets, alias_of, readout, family))


def named_method(text: str) -> tuple[MethodSpec, str | None]:
    """What a method's name stands for: the method that is trained, and the readout to lead with, if it says one.

    >>> [(spec.name, readout) for spec, readout in map(named_method, ("foster", "foster:boosted", "foster-b4"))]
    [('foster', None), ('foster', 'boosted'), ('foster', 'boosted')]
    """
    name, colon, readout = given("the method", text).partition(":")
    spec = METHODS[name]
    if spec.alias_of is not None:
        if colon:
            raise UserError(
                f"'{name}' stands for '{spec.alias_of}:{spec.readout}', so that it takes no other readout; "
                f"give '{spec.alias_of}:{readout}'"
            )
        return METHODS[spec.alias_of], spec.readout
    if colon:
        spec.require_readout(readout)
    return spec, readout if colon else None


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")
