"""drcil list, check."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import unknown_name
from ..settings import RunSettings
from .console import console, flush_output, print_json
from .options import Method, Plugin, takes

if TYPE_CHECKING:
    from ..data.dataset import DatasetEntry
    from ..methods import MethodSpec
    from ..registry import Registry


Entries = list[dict[str, Any]]

_FOR_PROGRAMS = ("paper", "stages", "readouts", "addons", "tasks")
"""Columns that only JSON has, because a table of 80 columns has no room for them."""


def list_known(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
) -> None:
    """List what is known by name: methods, streams, datasets and more."""
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    entries = KINDS[kind]()
    if json:
        print_json(entries)
    else:
        _print_table(entries)
        if kind == "methods":
            console().print("NAME+ADDON combines a method with an add-on: see 'drcil list addons'.", soft_wrap=True)
        if kind == "backbones":
            console().print("timm:NAME is the model NAME of timm, if that is installed.", soft_wrap=True)
    flush_output()


def _print_table(entries: Entries) -> None:
    from ..experiments.writers import entries_table

    hidden = _FOR_PROGRAMS if any(entry["origin"] for entry in entries) else (*_FOR_PROGRAMS, "origin")
    # Only the file name of a plugin: a full path would leave no room.
    rows = [{**entry, "origin": Path(entry["origin"] or "").name} for entry in entries]
    console().print(entries_table(rows, hidden))


def describe_method(spec: MethodSpec) -> dict[str, Any]:
    from ..methods.dry_run import stage_names

    return {
        "summary": spec.summary,
        "paper": spec.paper,
        "year": spec.year,
        "head": spec.head,
        "stages": stage_names(spec),
        "readouts": list(spec.readouts),
        "addons": list(spec.addons),
    }


def addons() -> Entries:
    """What names can be combined with: the add-ons for all methods, and the remedies of pipelines."""
    from ..methods.catalog import ADDONS
    from ..methods.rebalancing import REMEDIES

    general = [{"name": name, "for": "methods", "summary": addon.summary} for name, addon in ADDONS.items()]
    remedies = [{"name": name, "for": "pipelines", "summary": summary} for name, summary in REMEDIES.items()]
    return [
        *({**entry, "origin": ADDONS.origin(entry["name"])} for entry in general),
        *({**entry, "origin": None} for entry in remedies),
    ]


def streams() -> Entries:
    from ..data.dataset import DATASETS
    from ..streams.protocols import parse_stream, standard_streams

    return [
        {**stream._asdict(), "origin": DATASETS.origin(parse_stream(stream.name).dataset.partition(":")[0])}
        for stream in standard_streams()
    ]


def dataset(entry: DatasetEntry) -> dict[str, Any]:
    from ..data.dataset import ManualDownload

    return {"name": entry.form, **summary(entry.load), "fetchable": not isinstance(entry.download, ManualDownload)}


def summary(entry: Any) -> dict[str, Any]:
    """The first sentence of the docstring."""
    text = " ".join((entry.__doc__ or "").strip().partition("\n\n")[0].split())
    return {"summary": text.partition(". ")[0].rstrip(".")}


def registered(module: str, registry: str, describe: Callable[[Any], dict[str, Any]] = summary) -> Entries:
    """What a registry in a module of drcil's has: names, properties, and where each comes from (None: drcil)."""
    entries: Registry[Any] = getattr(import_module(f"drcil.{module}"), registry)
    return [{"name": name, **describe(entry), "origin": entries.origin(name)} for name, entry in entries.items()]


KINDS: dict[str, Callable[[], Entries]] = {
    "methods": lambda: registered("methods.catalog", "METHODS", describe_method),
    "addons": addons,
    "streams": streams,
    "datasets": lambda: registered("data.dataset", "DATASETS", dataset),
    "augmentations": lambda: registered("data.augment", "AUGMENTS"),
    "backbones": lambda: registered("nets.backbone", "BACKBONES"),
    "heads": lambda: registered("heads.head", "HEADS"),
    "metrics": lambda: registered("metrics", "METRICS"),
    "loggers": lambda: registered("train.loggers", "LOGGERS"),
}


@takes(RunSettings, only=("backbone", "freeze", "data"), panels=False)
def check(
    values: dict[str, Any],
    method: Method,
    laws: Annotated[
        list[str] | None,
        typer.Option("--law", metavar="NAME", help="Check only this law; repeatable.", show_default="all"),
    ] = None,
    stream: Annotated[str, typer.Option(metavar="STREAM", help="Three tasks of this stream.")] = "digits-b0-5",
    plugin: Plugin = None,
) -> None:
    """Check that a method keeps the laws of all methods: memory, frozen parts, predictions, saving, resuming.

    Exit code 1 if one is broken.
    """
    from ..process import configure
    from ..runs.plan import complete, require_part, require_tasks
    from ..testing import TASKS, BrokenLaw, check_method
    from .training import load

    options = {"method": method, "stream": stream, **values}
    settings = complete(RunSettings.parse({**options, "tasks": TASKS}, flags=True))
    # Errors in names or data are not failures of the method.
    present = load(settings)
    require_tasks(settings, present)
    require_part(settings, present)
    configure(threads=1)
    screen = console()

    def report(law: str, failure: BrokenLaw | None) -> None:
        screen.print(f"{law}: {'holds' if failure is None else f'BROKEN: {failure}'}", markup=False, soft_wrap=True)

    try:
        check_method(
            method,
            laws or None,
            report=report,
            stream=stream,
            backbone=settings.backbone,
            freeze=settings.freeze,
            data=settings.data,
        )
    except BrokenLaw:
        raise typer.Exit(1) from None
