"""``drcil list``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import unknown
from .options import Plugin
from .output import console, print_json
from .words import require_printed

if TYPE_CHECKING:
    from ..data.datasets.dataset import DatasetEntry
    from ..methods import MethodSpec
    from ..registry import Registry

Entries = list[dict[str, Any]]

_FOR_PROGRAMS = ("paper", "stages", "copies", "readouts", "addons", "tasks")
"""What only JSON has: in a table of 80 columns it would leave no room for the rest."""


def list_known(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """List what is known by name: methods, streams, datasets and more."""
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    entries = KINDS[kind]()
    if json:
        print_json(entries)
    else:
        _print_table(entries)
        if kind == "methods":
            console().print("NAME+ADDON combines a method with an add-on: see 'drcil list addons'.", soft_wrap=True)
        if kind == "backbones":
            console().print("timm:NAME is the model NAME of timm, if that is installed.", soft_wrap=True)
    require_printed()


def _print_table(entries: Entries) -> None:
    from ..report.tables import entries_table

    hidden = _FOR_PROGRAMS if any(entry["origin"] for entry in entries) else (*_FOR_PROGRAMS, "origin")
    # A plugin that is a file by its last name: a whole path would leave no room.
    shown = [{**entry, "origin": Path(entry["origin"] or "").name} for entry in entries]
    console().print(entries_table(shown, hidden))


def method(spec: MethodSpec) -> dict[str, Any]:
    from ..methods.rehearsal import stage_names

    return {
        "summary": spec.summary,
        "paper": spec.paper,
        "year": spec.year,
        "head": spec.head,
        "stages": stage_names(spec),
        "copies": spec.build.copies,
        "readouts": list(spec.readouts),
        "addons": list(spec.addons),
    }


def addons() -> Entries:
    """What names can be combined with: the add-ons for all methods, and the remedies of pipelines."""
    from ..methods.remedies import REMEDIES
    from ..methods.spec import ADDONS

    general = [{"name": name, "for": addon.takers, "summary": addon.summary} for name, addon in ADDONS.items()]
    remedies = [{"name": name, "for": "pipelines", "summary": summary} for name, summary in REMEDIES.items()]
    return [
        *({**entry, "origin": ADDONS.origin(entry["name"])} for entry in general),
        *({**entry, "origin": None} for entry in remedies),
    ]


def streams() -> Entries:
    from ..data.datasets.dataset import DATASETS
    from ..streams.protocols import parse_stream, standard_streams

    return [
        {**stream._asdict(), "origin": DATASETS.origin(parse_stream(stream.name).dataset.partition(":")[0])}
        for stream in standard_streams()
    ]


def dataset(entry: DatasetEntry) -> dict[str, Any]:
    from ..data.datasets.dataset import ByHand

    return {"name": entry.form, **summary(entry.load), "fetchable": not isinstance(entry.home, ByHand)}


def summary(entry: Any) -> dict[str, Any]:
    """The first sentence of the docstring."""
    text = " ".join((entry.__doc__ or "").strip().partition("\n\n")[0].split())
    return {"summary": text.partition(". ")[0].rstrip(".")}


def registered(module: str, registry: str, describe: Callable[[Any], dict[str, Any]] = summary) -> Entries:
    """What a registry in a module of drcil's has: names, properties, and where each comes from (None: drcil)."""
    found: Registry[Any] = getattr(import_module(f"drcil.{module}"), registry)
    return [{"name": name, **describe(entry), "origin": found.origin(name)} for name, entry in found.items()]


KINDS: dict[str, Callable[[], Entries]] = {
    "methods": lambda: registered("methods.spec", "METHODS", method),
    "addons": addons,
    "streams": streams,
    "datasets": lambda: registered("data.datasets.dataset", "DATASETS", dataset),
    "augmentations": lambda: registered("data.augment", "AUGMENTS"),
    "backbones": lambda: registered("nets.features", "BACKBONES"),
    "heads": lambda: registered("heads.base", "HEADS"),
    "metrics": lambda: registered("metrics", "METRICS"),
    "loggers": lambda: registered("train.loggers", "LOGGERS"),
}
