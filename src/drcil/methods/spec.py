"""The table of methods known by name, and how a class or a combination gets into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..registry import Registry
from .base import Method


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

    @property
    def head(self) -> str:
        """The kind of head, unless another is asked for."""
        return str(self.presets.get("head", self.build.head))


METHODS: Registry[MethodSpec] = Registry("method", "drcil.methods")


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
    **presets: Any,
) -> None:
    """Register a name for a class with some settings fixed: how combinations get names without copies of code."""
    METHODS.register(name)(MethodSpec(name, build, summary, paper, year, recipe, presets))


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
