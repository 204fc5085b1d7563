"""``drcil run``: learn a stream with a method, in a new run directory."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from .output import warn

if TYPE_CHECKING:
    from ..data.dataset import Dataset

METHOD, STREAM = "mafdrc", "digits-b0-5"
"""What is run when nothing is named."""
_NAMED_FILES = 3

_WHAT, _WHERE, _SHOWN = "What is learnt", "How it is computed", "What is kept and shown"


def run(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="See 'drcil list methods'.")] = METHOD,
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="DATASET-b0-TASKS, DATASET-b50-STEPS, DATASET-BASE/STEP.")
    ] = STREAM,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the training.", show_default="0", rich_help_panel=_WHAT)
    ] = None,
    order_seed: Annotated[
        int | None, typer.Option(help="Seed of the class order.", show_default="1993", rich_help_panel=_WHAT)
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Old images to keep: 2000 (in all), 20/class, all, none.", rich_help_panel=_WHAT),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="See 'drcil list backbones'.", rich_help_panel=_WHAT)] = None,
    head: Annotated[
        str | None, typer.Option(help="Head of a pipeline: linear, rc, drc.", rich_help_panel=_WHAT)
    ] = None,
    remedy: Annotated[
        str | None,
        typer.Option(help="Remedies of a pipeline: la, bft, wa, joined by commas; or none.", rich_help_panel=_WHAT),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(envvar="DRCIL_DATA", help="Where datasets are.", show_default="./data", rich_help_panel=_WHAT),
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Stop after so many tasks.", rich_help_panel=_WHAT)] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Image size, if not the dataset's own.", rich_help_panel=_WHAT)
    ] = None,
    epochs_scale: Annotated[
        float | None, typer.Option(help="Factor of all epochs.", show_default="1.0", rich_help_panel=_WHAT)
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Set of options: full, short, cpu.", show_default="full", rich_help_panel=_WHAT)
    ] = None,
    augment: Annotated[
        str | None, typer.Option(help="Augmentation: none, crop, basic, auto.", rich_help_panel=_WHAT)
    ] = None,
    validation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of training images to hold out.", rich_help_panel=_WHAT)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.", rich_help_panel=_WHAT),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=_WHERE)] = None,
    precision: Annotated[str | None, typer.Option(help="32, 16-mixed, bf16-mixed.", rich_help_panel=_WHERE)] = None,
    threads: Annotated[int | None, typer.Option(help="CPU cores that it may use.", rich_help_panel=_WHERE)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.", rich_help_panel=_WHERE)] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/NAME", rich_help_panel=_SHOWN)
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option(metavar="EPOCHS", help="Also measure every so many epochs.", rich_help_panel=_SHOWN)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, all else to stderr.", rich_help_panel=_SHOWN)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print the result, no progress.", rich_help_panel=_SHOWN)
    ] = False,
) -> None:
    """Learn a stream with a method, in a run directory of its own."""
    from ..runs.plan import plan_run
    from ..runs.run import Run
    from ..runs.settings import make_settings
    from .training import train

    require_pipeline(method, head, remedy)
    engine = {
        "device": device,
        "precision": precision,
        "threads": threads,
        "workers": workers,
        "eval_every": eval_every,
    }
    chosen = make_settings(
        method=method,
        stream=stream,
        seed=seed,
        order_seed=order_seed,
        memory=memory,
        backbone=backbone,
        data=str(data.expanduser().absolute()) if data else None,
        tasks=tasks,
        image_size=image_size,
        epochs_scale=epochs_scale,
        profile=profile,
        augment=augment,
        validation=validation,
        settings=method_settings(head, remedy, settings or []),
        engine={name: value for name, value in engine.items() if value is not None},
    )
    loaded = Run(out or Path(), chosen).stream()
    work = plan_run(chosen, loaded)
    warn_of_skipped(loaded.dataset)
    train(Run.create(chosen, out), loaded, work, json=json, quiet=quiet)


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


def warn_of_skipped(dataset: Dataset) -> None:
    """Name some of the files that could not be read and are left out."""
    from ..data.load import skipped_files

    skipped = skipped_files(dataset)
    if skipped:
        more = ", …" if len(skipped) > _NAMED_FILES else ""
        files = "1 file cannot be read and is" if len(skipped) == 1 else f"{len(skipped)} files cannot be read and are"
        warn(f"{files} left out: {', '.join(skipped[:_NAMED_FILES])}{more}")
