"""Registry of methods: names, presets, add-ons; settings from recipes and users."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..data.dataset import DataSpec
from ..errors import UserError, check_text, unknown_name
from ..nets.backbone import Family, family_of
from ..registry import Registry
from ..settings import describe_validation_error
from ..stages import Schedule
from .method import Method, Settings
from .recipe import backbone_stages, load_recipe, merge


@dataclass(frozen=True)
class Addon:
    """An add-on ``+NAME`` for all methods to which it applies. Methods may define further add-ons."""

    summary: str
    build: Callable[[type[Method]], type[Method]]
    """From the class of a method to the class of the method with the add-on."""
    reason_not_applicable: Callable[[type[Method]], str | None] = lambda build: None
    """Why it does not apply to a class; None: it does."""


ADDONS: Registry[Addon] = Registry("add-on", "drcil.methods")


@dataclass(frozen=True)
class MethodSpec:
    """A registered method: a class, its recipe, and settings that the name fixes."""

    name: str
    build: type[Method]
    summary: str
    paper: str
    year: int
    recipe: str | Path
    """The name of a built-in recipe, or a file."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    alias_of: str | None = None
    """The name of the method that is trained, where this one is another name for a readout of it."""
    readout: str | None = None
    """The readout that this name leads with; None: the method's first."""
    family: Family | None = None
    """The family of backbones that it needs; None: any family."""

    def backbone(self, data: DataSpec, requested: str | None = None) -> str:
        """The backbone for such data: the requested one, or the data's default."""
        default = data.transformer if self.family == "transformer" else data.backbone
        name = default if requested is None else requested
        family = family_of(name)
        if self.family not in (None, family):
            raise UserError(
                f"'{self.name}' needs a {self.family} backbone, but '{name}' is a {family} one; choose another, such "
                f"as '{default}', or omit it"
            )
        return name

    @property
    def head(self) -> str:
        """The default kind of head."""
        return str(self.presets.get("head", self.build.head))

    @property
    def readouts(self) -> tuple[str, ...]:
        """The ways to read class scores, first the one that leads."""
        names = self.build.readout_names
        return names if self.readout is None else tuple(dict.fromkeys((self.readout, *names)))

    @property
    def addons(self) -> tuple[str, ...]:
        """The add-ons of this method, and those for all methods that apply to it."""
        if self.alias_of is not None:
            return ()
        general = (name for name, addon in ADDONS.items() if addon.reason_not_applicable(self.build) is None)
        return tuple(dict.fromkeys((*self.build.addons(self.presets), *general)))

    def combined_with(self, addon: str) -> MethodSpec:
        """The method with an add-on: another head, one more remedy, another stage."""
        if addon not in self.addons:
            combinations = ", ".join(f"{self.name}+{candidate}" for candidate in self.addons)
            hint = f"; known: {combinations}" if combinations else " or anything else"
            if self.alias_of is None and addon in ADDONS:
                hint = f": {ADDONS[addon].reason_not_applicable(self.build)}"
            raise UserError(f"'{self.name}' cannot be combined with '{addon}'{hint}")
        combined = replace(self, name=f"{self.name}+{addon}", summary=f"{self.summary}, with {addon}")
        presets = self.build.addons(self.presets)
        if addon in presets:
            return replace(combined, presets={**self.presets, **presets[addon]})
        return replace(combined, build=ADDONS[addon].build(self.build))

    def require_readout(self, name: str) -> None:
        if name not in self.readouts:
            raise unknown_name(f"readout of '{self.name}'", name, self.readouts)


class MethodTable(Registry[MethodSpec]):
    """Methods by name. An unregistered ``NAME+ADDON`` is the method combined with its add-on."""

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
    """Resolve a method's name: the method that is trained, and the leading readout, if the name has one.

    >>> [(spec.name, readout) for spec, readout in map(named_method, ("foster", "foster:boosted", "foster-b4"))]
    [('foster', None), ('foster', 'boosted'), ('foster', 'boosted')]
    """
    name, colon, readout = check_text("the method", text).partition(":")
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


def resolve_settings(
    spec: MethodSpec,
    kind: str,
    overrides: Mapping[str, Any],
    epochs_scale: float = 1.0,
    stream: str | None = None,
    backbone: str | None = None,
    schedule: str | None = None,
    stage_options: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a method on a kind of data, and on a stream where images come from one.

    ``backbone``: of whose family they are; None: of the one that the method needs, or convolutional. ``schedule``:
    one by name; None: that of the recipe. ``stage_options``: ``epochs``, ``lr`` and ``batch_size`` of every stage that
    trains a backbone. ``overrides`` has dotted keys (``later.epochs``) and takes precedence over everything else.
    """
    keys = setting_keys(spec.build.Settings)
    family = spec.family or "convolutional" if backbone is None else family_of(backbone)
    values: dict[str, Any] = merge(load_recipe(spec.recipe, kind, stream, family, schedule), spec.presets)
    for key, value in overrides.items():
        if key not in keys:
            raise unknown_name(f"setting of '{spec.name}'", key, keys, nearest=3)
        values = merge(values, _nested(key, value))
    try:
        settings = spec.build.Settings.model_validate(values)
    except ValidationError as error:
        raise UserError(f"invalid setting of '{spec.name}': {describe_validation_error(error)}") from None
    changed = _change_stages(spec, settings, backbone_stages(spec.recipe, kind, stream), stage_options or {}, overrides)
    return settings.scaled(epochs_scale).model_copy(update=changed)


def _change_stages(
    spec: MethodSpec,
    settings: Settings,
    stages: Sequence[str],
    options: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> dict[str, Schedule]:
    """The stages with their epochs, rate and batch size replaced; milestones, warm-up and final rate keep their ratio.

    Overrides of a single stage take precedence.
    """
    schedules = settings.schedules()
    changed = {}
    for name in stages:
        stage_options = {option: value for option, value in options.items() if f"{name}.{option}" not in overrides}
        if name not in schedules or not stage_options:
            continue
        schedule = schedules[name]
        if "epochs" in stage_options:
            schedule = schedule.scaled(stage_options["epochs"] / schedule.epochs)
        if "lr" in stage_options:
            ratio = stage_options["lr"] / schedule.lr
            rates = {"lr_end": schedule.lr_end * ratio, "warmup_lr": schedule.warmup_lr * ratio}
            schedule = schedule.model_copy(update={"lr": stage_options["lr"], **rates})
        if "batch_size" in stage_options:
            schedule = schedule.model_copy(update={"batch_size": stage_options["batch_size"]})
        changed[name] = schedule
    if options and not set(stages) & schedules.keys():
        raise UserError(
            f"'{spec.name}' has no stage that trains a backbone, so '{next(iter(options))}' has no effect; omit it"
        )
    return changed


def changed_settings(
    spec: MethodSpec,
    kind: str,
    overrides: Mapping[str, Any],
    stream: str | None = None,
    backbone: str | None = None,
    schedule: str | None = None,
) -> dict[str, Any]:
    """The overrides that differ from the recipe: the others do not change the run."""
    if not overrides:
        return {}
    plain, changed = (
        resolve_settings(spec, kind, values, 1.0, stream, backbone, schedule).model_dump(mode="json")
        for values in ({}, overrides)
    )
    return {key: value for key, value in overrides.items() if _value_at(plain, key) != _value_at(changed, key)}


def setting_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All keys that ``--set`` accepts: nested models by dotted path."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        inner = _model_in(info.annotation)
        keys += setting_keys(inner, f"{prefix}{name}.") if inner else [prefix + name]
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field's type, also if the field may be None."""
    candidates = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next(
        (candidate for candidate in candidates if isinstance(candidate, type) and issubclass(candidate, BaseModel)),
        None,
    )


def _nested(key: str, value: Any) -> dict[str, Any]:
    """``a.b`` and a value as a table within a table."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _value_at(values: Any, key: str) -> Any:
    """The value of a dotted key; None if a table in its path is missing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
