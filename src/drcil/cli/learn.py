"""drcil learn, rename, forget, undo."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from ..errors import Interrupted, UserError
from ..settings import EngineSettings, ModelSettings, RunSettings
from .console import console, flush_output, print_json, warn
from .options import Json, Plugin, Quiet, takes, usable

if TYPE_CHECKING:
    from rich.table import Table

    from ..learner import Learner
    from ..models.model import Model
    from ..train import Listener, SnapshotStore
    from ..updates import LearnResult


DEFAULT_METHOD = "mafdrc"
_VALIDATION = 0.1
"""Share of the images of a class that is held out."""


@takes(
    RunSettings,
    only=(*ModelSettings.model_fields, "validation", "data", "device", "threads", "workers"),
    defaults={"validation": f"{_VALIDATION}, of every class of at least 20 images"},
)
def learn(
    values: dict[str, Any],
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The model's directory; made if there is none.", callback=usable)
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|CSV", help="One directory per class, or a table with columns file,label.", callback=usable
        ),
    ],
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN|MODEL",
            help="What a new model begins with: the last task of a run, or another model.",
            rich_help_panel="Experiment",
            callback=usable,
        ),
    ] = None,
    known: Annotated[
        str,
        typer.Option(
            metavar="refuse|skip|refresh",
            help="What to do with images of classes that it knows already.",
            rich_help_panel="Experiment",
        ),
    ] = "refuse",
    plugin: Plugin = None,
    json: Json = False,
    quiet: Quiet = False,
    progress: Annotated[str | None, typer.Option(metavar="json", help="Progress for programs.", hidden=True)] = None,
) -> None:
    """Teach a model what is new to it in a folder. The same command resumes after an interruption."""
    from ..errors import check_choice
    from ..models.model_directory import read_model
    from ..models.store import current_version, has_unfinished_update, is_versioned
    from ..process import configure
    from ..train.progress import JsonLines
    from ..train.progress import showing as show
    from ..updates import Known
    from ..updates import learn_folder as teach

    check_choice("--known", known, get_args(Known))
    if progress is not None:
        check_choice("--progress", progress, ["json"])
    model_options = {name: value for name, value in values.items() if name in ModelSettings.model_fields}
    before = current_version(model) if is_versioned(model) else None
    if before is not None:
        _require_unchanged(model, {**model_options, "from": origin})
    if origin is not None:
        _require_unchanged(origin, model_options)
    engine = EngineSettings.parse({name: values.get(name) for name in ("device", "workers")})
    configure(values.get("threads"))
    screen = console(stderr=json)

    def make(listener: Listener, journal: SnapshotStore) -> Learner:
        from ..learner import Learner

        options = {"method": DEFAULT_METHOD, **model_options, **engine.given()}
        return Learner(**options, listener=listener, journal=journal)

    def showing(work: Sequence[Sequence[int]]) -> AbstractContextManager[Listener]:
        if progress == "json":
            return nullcontext(JsonLines(work))
        return nullcontext(lambda event: None) if quiet else show(screen, work)

    def ignore_sigterm() -> None:
        # The last message tells the parent process which model is stored.
        if progress == "json":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        result = teach(
            model,
            folder,
            make,
            engine,
            validation=values.get("validation", _VALIDATION),
            known=cast(Known, known),
            showing=showing,
            origin=None if origin is None else read_model(origin, values.get("data")),
            options={**model_options, "from": origin},
            settling=ignore_sigterm,
        )
    except KeyboardInterrupt:
        if is_versioned(model) and current_version(model) != before:
            raise Interrupted(f"stopped when {model} had learnt all of it; nothing is left to do") from None
        if not has_unfinished_update(model):
            raise Interrupted("stopped before anything was kept; the same command begins anew") from None
        raise Interrupted("stopped; the same command resumes") from None
    if progress == "json":
        print(dumps({"event": "learnt", "new": result.new, "refreshed": result.refreshed}), flush=True)
        return
    _report(model, result, json=json)
    flush_output()


def _require_unchanged(model: Path, options: dict[str, Any]) -> None:
    """Options of a new model cannot be changed later."""
    for name, value in options.items():
        if value is not None:
            option = "--from" if name == "from" else ModelSettings.flag(name)
            raise UserError(f"{option} is only for a new model, and {model} exists; omit it")


def _report(path: Path, result: LearnResult, *, json: bool) -> None:
    """Print what was learnt and the held-out accuracy."""
    for file in result.source.skipped:
        warn(f"{file} cannot be read as an image and was left out")
    for directory, count, name in result.source.ignored:
        files = f"{name} and {count - 1} more were" if count > 1 else f"{name} was"
        warn(f"{files} left out of {directory}: images lie in CLASS/ and have endings such as .jpg or .png")
    model = result.model
    if json:
        usage = None
        if model.usage is not None:
            usage = model.usage.model_dump(mode="json", exclude={"calibration": {"below", "right"}})
        changed = {"new": list(result.new), "refreshed": list(result.refreshed)}
        print_json({"model": str(path), **changed, "classes": list(model.classes), "usage": usage})
        return
    screen = console()
    if not result.new and not result.refreshed:
        screen.print("nothing new to learn: the model knows everything in the folder", markup=False)
        return
    screen.print(_table(model))
    screen.print(_summary(path, result), markup=False, soft_wrap=True)


def _table(model: Model) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    table.add_column("class", overflow="fold")
    for name in ("images", "held out", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    usage = model.usage
    assert usage is not None
    for name, images, held_out, accuracy in zip(model.classes, usage.images, usage.held, usage.accuracy, strict=True):
        table.add_row(Text(name), str(images), str(held_out), "–" if accuracy is None else f"{accuracy:.1f} %")
    return table


def _summary(path: Path, result: LearnResult) -> str:
    usage = result.model.usage
    assert usage is not None
    counts = ((len(result.new), "new"), (len(result.refreshed), "refreshed"))
    changes = " and ".join(f"{count} of them {change}" for count, change in counts if count)
    text = f"{path} knows {len(result.model.classes)} classes, {changes}"
    if usage.calibration is None:
        return f"{text}; no images were held out, so its accuracy is unknown and it is not calibrated"
    right = sum(held_out * (accuracy or 0.0) for held_out, accuracy in zip(usage.held, usage.accuracy, strict=True))
    text += f"; held-out accuracy: {right / sum(usage.held):.1f} % ({sum(usage.held)} images)"
    return f"{text}\n{usage.calibration.summary()}"


StoredModel = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model that 'drcil learn' has made.", callback=usable)
]


def rename(
    model: StoredModel,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The class as it is called.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What it is to be called.")],
    plugin: Plugin = None,
) -> None:
    """Call a class by another name."""
    from ..updates import rename as change

    change(model, old, new)
    console().print(f"{model}: '{old}' is now '{new}'", markup=False, soft_wrap=True)


def forget(
    model: StoredModel,
    classes: Annotated[
        list[str] | None, typer.Argument(metavar="CLASS...", help="Classes that it shall not know any more.")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove older versions, which have the classes.")] = False,
    plugin: Plugin = None,
) -> None:
    """Let a model forget classes: their rows, images and statistics. The scores of all others stay the same."""
    from ..updates import forget as change

    if not classes and not purge:
        raise UserError("name the classes to forget, or give --purge to remove older versions alone")
    left = change(model, classes or (), purged=purge)
    text = f"{model} knows {len(left)} class{'' if len(left) == 1 else 'es'}: {', '.join(left)}"
    older = "older versions are gone" if purge else "older versions still have what is forgotten; --purge removes them"
    console().print(f"{text}; {older}", markup=False, soft_wrap=True)


def undo(model: StoredModel, plugin: Plugin = None) -> None:
    """Go back to the model before its last change."""
    from ..updates import undo as change

    classes = change(model)
    console().print(f"restored the previous version of {model} ({len(classes)} classes)", markup=False, soft_wrap=True)
