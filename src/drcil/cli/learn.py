"""``drcil learn``: teach a model the classes of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from ..errors import Interrupted, UserError
from ..limits import SEED, VALIDATION
from . import options
from .checks import usable, within
from .chosen import method_settings
from .output import console, print_json, warn, warnings_as_sentences
from .words import require_printed

if TYPE_CHECKING:
    from rich.table import Table

    from ..learner import Learner
    from ..models.model import Model
    from ..teaching.learn import Lesson
    from ..train import Journal, Listener

DEFAULT_METHOD = "mafdrc"


def learn(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The model's directory; made if there is none.", callback=usable)
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|CSV", help="One directory per class, or a table with columns file,label.", callback=usable
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="How to learn; see 'drcil list methods'.", show_default=DEFAULT_METHOD, rich_help_panel=options.WHAT
        ),
    ] = None,
    memory: options.Memory = None,
    backbone: options.Backbone = None,
    weights: options.WeightsFile = None,
    pretrained: options.Pretrained = False,
    freeze: options.Freeze = None,
    image_size: options.ImageSize = None,
    epochs_scale: options.EpochsScale = None,
    schedule: options.Schedule = None,
    augment: options.Augment = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.", rich_help_panel=options.WHAT
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of training.", show_default="0", rich_help_panel=options.WHAT, callback=within(SEED)),
    ] = None,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN|MODEL",
            help="What a new model begins with: the last task of a run, or another model.",
            rich_help_panel=options.WHAT,
            callback=usable,
        ),
    ] = None,
    known: Annotated[
        str,
        typer.Option(
            metavar="refuse|skip|refresh",
            help="What to do with images of classes that it knows already.",
            rich_help_panel=options.WHAT,
        ),
    ] = "refuse",
    validation: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share to hold out of every class of at least 20 images.",
            rich_help_panel=options.WHAT,
            callback=within(VALIDATION),
        ),
    ] = 0.1,
    data: options.Data = None,
    device: options.Device = None,
    threads: options.Threads = None,
    workers: options.Workers = None,
    plugin: options.Plugin = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Teach a model what a folder has that is new to it. The same command goes on where it was stopped."""
    from ..arguments import one_of
    from ..models.directory import read_model
    from ..models.versions import current_version, is_versioned
    from ..process import configure
    from ..report.progress import showing as show
    from ..teaching.learn import Known, is_kept
    from ..teaching.learn import learn as teach
    from ..train import engine_settings

    one_of("--known", known, get_args(Known))
    given: dict[str, Any] = {
        "method": method,
        "backbone": backbone,
        "weights": weights,
        "pretrained": pretrained or None,
        "freeze": freeze,
        "memory": memory,
        "image_size": image_size,
        "augment": augment,
        "seed": seed,
        "settings": method_settings(None, None, settings or []) or None,
        "epochs_scale": epochs_scale,
        # Only if it is given: lessons that were stopped before there was such an option go on.
        **({} if schedule is None else {"schedule": schedule}),
    }
    before = current_version(model) if is_versioned(model) else None
    if before is not None:
        _require_unchanged(model, {**given, "from": origin})
    if origin is not None:
        _require_unchanged(origin, given)
    engine = {name: value for name, value in (("device", device), ("workers", workers)) if value is not None}
    configure(threads)
    screen = console(stderr=json)

    def make(listener: Listener, journal: Journal) -> Learner:
        return _new_learner({**given, "listener": listener, "journal": journal}, engine)

    def showing(work: Sequence[Sequence[int]]) -> AbstractContextManager[Listener]:
        return nullcontext(lambda event: None) if quiet else show(screen, work)

    try:
        with warnings_as_sentences():
            lesson = teach(
                model,
                folder,
                make,
                engine_settings(engine),
                validation=validation,
                known=cast(Known, known),
                showing=showing,
                origin=None if origin is None else read_model(origin, data),
                options={**given, "from": origin},
            )
    except KeyboardInterrupt:
        if is_versioned(model) and current_version(model) != before:
            raise Interrupted(f"stopped when {model} had learnt all of it; nothing is left to do") from None
        if not is_kept(model):
            raise Interrupted("stopped before anything was kept; the same command begins anew") from None
        raise Interrupted("stopped; the same command goes on where it was") from None
    _tell(model, lesson, json=json)
    require_printed()


def _new_learner(given: dict[str, Any], engine: dict[str, Any]) -> Learner:
    from ..learner import Learner

    chosen = {name: value for name, value in given.items() if value is not None}
    return Learner(chosen.pop("method", DEFAULT_METHOD), **chosen, **engine)


def _require_unchanged(model: Path, given: dict[str, Any]) -> None:
    """What a model began with it keeps."""
    for name, value in given.items():
        if value is not None:
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is for a model that begins, and {model} has learnt already; omit it")


def _tell(path: Path, lesson: Lesson, *, json: bool) -> None:
    """What was learnt, and how well it is known."""
    for file in lesson.found.skipped:
        warn(f"{file} cannot be read as an image and was left out")
    for directory, count, name in lesson.found.ignored:
        what = f"{name} and {count - 1} more were" if count > 1 else f"{name} was"
        warn(f"{what} left out of {directory}: images lie in CLASS/ and have endings such as .jpg or .png")
    model = lesson.model
    if json:
        usage = None
        if model.usage is not None:
            usage = model.usage.model_dump(mode="json", exclude={"calibration": {"below", "right"}, "seen": True})
        changed = {"new": list(lesson.new), "refreshed": list(lesson.refreshed)}
        print_json({"model": str(path), **changed, "classes": list(model.classes), "usage": usage})
        return
    screen = console()
    if not lesson.new and not lesson.refreshed:
        screen.print("nothing new to learn: the model knows all that is in the folder", markup=False)
        return
    screen.print(_table(model))
    screen.print(_summary(path, lesson), markup=False, soft_wrap=True)


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
    for name, images, held, accuracy in zip(model.classes, usage.images, usage.held, usage.accuracy, strict=True):
        table.add_row(Text(name), str(images), str(held), "–" if accuracy is None else f"{accuracy:.1f} %")
    return table


def _summary(path: Path, lesson: Lesson) -> str:
    usage = lesson.model.usage
    assert usage is not None
    counts = ((len(lesson.new), "new"), (len(lesson.refreshed), "refreshed"))
    done = " and ".join(f"{count} of them {what}" for count, what in counts if count)
    said = f"{path} knows {len(lesson.model.classes)} classes, {done}"
    if usage.calibration is None:
        return f"{said}; no images were held out, so that its accuracy is not known and it is not calibrated"
    right = sum(held * (accuracy or 0.0) for held, accuracy in zip(usage.held, usage.accuracy, strict=True))
    said += f"; it is right on {right / sum(usage.held):.1f} % of {sum(usage.held)} images"
    return f"{said}\n{usage.calibration.told()}"
