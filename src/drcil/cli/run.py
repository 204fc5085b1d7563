"""``drcil run``: learn a stream with a method, in a new run directory."""

from __future__ import annotations

import tomllib
from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from . import options
from .output import console, warn

if TYPE_CHECKING:
    from ..data.datasets.dataset import Dataset
    from ..runs.settings import RunSettings

METHOD, STREAM = "mafdrc", "digits-b0-5"
"""What is run when nothing is named."""
_NAMED_FILES = 3


def run(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="See 'drcil list methods'.")] = METHOD,
    stream: options.Stream = STREAM,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the training.", show_default="0", rich_help_panel=options.WHAT)
    ] = None,
    order_seed: options.OrderSeed = None,
    memory: options.Memory = None,
    backbone: options.Backbone = None,
    head: Annotated[
        str | None, typer.Option(help="Head of a pipeline: linear, rc, drc.", rich_help_panel=options.WHAT)
    ] = None,
    remedy: Annotated[
        str | None,
        typer.Option(
            help="Remedies of a pipeline: la, bft, wa, joined by commas; or none.", rich_help_panel=options.WHAT
        ),
    ] = None,
    data: options.Data = None,
    tasks: options.Tasks = None,
    image_size: options.ImageSize = None,
    epochs_scale: options.EpochsScale = None,
    profile: options.Profile = None,
    augment: options.Augment = None,
    validation: options.Validation = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.", rich_help_panel=options.WHAT
        ),
    ] = None,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    compile: options.Compile = False,
    out: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/NAME", rich_help_panel=options.SHOWN)
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(metavar="EPOCHS", help="Also measure every so many epochs.", rich_help_panel=options.SHOWN),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn a stream with a method, in a run directory of its own."""
    from ..runs.plan import plan_run
    from ..runs.run import RUNS, Run
    from ..suites.adopt import adopt, find_twin
    from .training import train

    require_pipeline(method, head, remedy)
    chosen = options.chosen_settings(
        method=method,
        stream=stream,
        seed=seed,
        order_seed=order_seed,
        memory=memory,
        backbone=backbone,
        data=data,
        tasks=tasks,
        image_size=image_size,
        epochs_scale=epochs_scale,
        profile=profile,
        augment=augment,
        validation=validation,
        settings=method_settings(head, remedy, settings or []),
        device=device,
        precision=precision,
        threads=threads,
        workers=workers,
        cache=cache,
        compile=compile,
        eval_every=eval_every,
    )
    loaded = Run(out or Path(), chosen).stream()
    work = plan_run(chosen, loaded)
    warn_of_skipped(loaded.dataset)
    twin = find_twin(chosen, out.parent if out else RUNS, loaded)
    made = Run.create(chosen, out)
    adopted = adopt(made, twin, loaded) if twin else 0
    if twin and adopted and not quiet:
        tasks_of = "1 task" if adopted == 1 else f"{adopted} tasks"
        sentence = f"{tasks_of} adopted from {twin.directory}: {method} is trained as {twin.settings.method} is"
        console(stderr=json).print(sentence, markup=False, soft_wrap=True)
    train(made, loaded, work, json=json, quiet=quiet)


def run_arguments(settings: RunSettings, out: Path) -> list[str]:
    """What ``drcil`` is to be called with, so that it makes a run of these settings in this place."""
    given = settings.model_dump(mode="json", exclude={"format", "method", "stream", "settings", "engine"})
    given |= settings.engine.model_dump(mode="json", include=set(options.ENGINE))
    arguments = ["run", settings.method, settings.stream, f"--out={out}"]
    arguments += ["--compile"] if settings.engine.compile else []
    arguments += [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    return arguments + [f"--set={key}={toml_text(value)}" for key, value in settings.settings.items()]


def require_pipeline(method: str, head: str | None, remedy: str | None) -> None:
    """A head and remedies can be chosen for the methods that are pipelines."""
    from ..methods import METHODS

    known = METHODS[method].build.Settings.model_fields
    for option, setting, given in (("--head", "head", head), ("--remedy", "remedies", remedy)):
        if given is not None and setting not in known:
            raise UserError(
                f"{option} is for the pipelines maf, mdt and mec and their combinations; '{method}' is none"
            )


def method_settings(head: str | None, remedy: str | None, given: list[str]) -> dict[str, Any]:
    """The method's settings that were given by hand: ``--head`` and ``--remedy``, and over them every ``--set``."""
    chosen: dict[str, Any] = {}
    if head is not None:
        chosen["head"] = head
    if remedy is not None:
        chosen["remedies"] = [] if remedy == "none" else [name.strip() for name in remedy.split(",")]
    for assignment in given:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set takes KEY=VALUE, such as later.epochs=20, not '{assignment}'")
        chosen[key.strip()] = toml_value(value.strip())
    return chosen


def toml_value(text: str) -> Any:
    """A number, truth value, list or table as TOML writes it; anything else is a string.

    >>> toml_value("0.5"), toml_value("[30, 50]"), toml_value("cosine")
    (0.5, [30, 50], 'cosine')
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def toml_text(value: Any) -> str:
    """A value as ``toml_value`` reads it.

    >>> toml_text(0.5), toml_text([30, 50]), toml_text("cosine")
    ('0.5', '[30, 50]', '"cosine"')
    """
    # What JSON has of numbers, truth values, strings and lists is TOML too.
    return to_json(value)


def warn_of_skipped(dataset: Dataset) -> None:
    """Name some of the files that could not be read and are left out."""
    from ..data.datasets.check import skipped_files

    skipped = skipped_files(dataset)
    if skipped:
        more = ", …" if len(skipped) > _NAMED_FILES else ""
        files = "1 file cannot be read and is" if len(skipped) == 1 else f"{len(skipped)} files cannot be read and are"
        warn(f"{files} left out: {', '.join(skipped[:_NAMED_FILES])}{more}")
