"""``drcil list``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import unknown
from .output import console, print_json

if TYPE_CHECKING:
    from ..methods import MethodSpec

Entries = list[dict[str, Any]]

_FOR_PROGRAMS = ("paper", "stages", "copies", "tasks")
"""What only JSON has: in a table of 80 columns it would leave no room for the rest."""


def list_known(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(_KINDS)}.")],
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """List what is known by name: methods, streams, datasets and more."""
    from ..report.tables import entries_table

    if kind not in _KINDS:
        raise unknown("list", kind, _KINDS)
    entries = _KINDS[kind]()
    if json:
        print_json(entries)
    else:
        console().print(entries_table(entries, hidden=_FOR_PROGRAMS))


def methods() -> Entries:
    from ..methods import METHODS

    return [
        {
            "name": name,
            "summary": spec.summary,
            "paper": spec.paper,
            "year": spec.year,
            "head": spec.head,
            "stages": stages(spec),
            "copies": spec.build.copies,
        }
        for name, spec in METHODS.items()
    ]


def stages(spec: MethodSpec) -> list[str]:
    """The schedules that a first and a later task run through, whichever data the recipe is for. Nothing is built."""
    from ..methods import Architecture
    from ..methods.resolve import resolve_settings
    from ..recipes import recipe_kinds

    settings = resolve_settings(spec, recipe_kinds(spec.recipe)[0], {})
    method = spec.build(settings, Architecture("resnet32", channels_in=3))
    return list(dict.fromkeys((*method.stages(1), *method.stages(2))))


def streams() -> Entries:
    from ..streams.protocols import standard_streams

    return [stream._asdict() for stream in standard_streams()]


def datasets() -> Entries:
    from ..data.datasets.dataset import DATASETS, Archive

    return [
        {"name": entry.form, "summary": _summary(entry.load), "fetchable": isinstance(entry.home, Archive)}
        for entry in DATASETS.values()
    ]


def augmentations() -> Entries:
    from ..data.augment import AUGMENTS

    return _summaries(AUGMENTS)


def backbones() -> Entries:
    from ..nets.build import BACKBONES

    return _summaries(BACKBONES)


def heads() -> Entries:
    from ..nets.build import HEADS

    return _summaries(HEADS)


def _summaries(registry: Mapping[str, Any]) -> Entries:
    return [{"name": name, "summary": _summary(entry)} for name, entry in registry.items()]


def _summary(entry: Any) -> str:
    """The first sentence of the docstring."""
    text = " ".join((entry.__doc__ or "").strip().partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


_KINDS: dict[str, Callable[[], Entries]] = {
    "methods": methods,
    "streams": streams,
    "datasets": datasets,
    "augmentations": augmentations,
    "backbones": backbones,
    "heads": heads,
}
