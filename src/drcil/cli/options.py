"""The options that ``run`` and ``compare`` have in common, with one wording, and the settings they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..runs.settings import RunSettings

WHAT, WHERE, SHOWN = "What is learnt", "How it is computed", "What is kept and shown"
"""The groups that help lists options in."""

Stream = Annotated[
    str, typer.Argument(metavar="STREAM", help="DATASET-b0-TASKS, DATASET-b50-STEPS, DATASET-BASE/STEP.")
]
OrderSeed = Annotated[
    int | None, typer.Option(help="Seed of the class order.", show_default="1993", rich_help_panel=WHAT)
]
Memory = Annotated[
    str | None, typer.Option(help="Old images to keep: 2000 (in all), 20/class, all, none.", rich_help_panel=WHAT)
]
Backbone = Annotated[str | None, typer.Option(help="See 'drcil list backbones'.", rich_help_panel=WHAT)]
Data = Annotated[
    Path | None,
    typer.Option(envvar="DRCIL_DATA", help="Where datasets are.", show_default="./data", rich_help_panel=WHAT),
]
Tasks = Annotated[int | None, typer.Option(help="Stop after so many tasks.", rich_help_panel=WHAT)]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Image size, if not the dataset's own.", rich_help_panel=WHAT)
]
EpochsScale = Annotated[
    float | None, typer.Option(help="Factor of all epochs.", show_default="1.0", rich_help_panel=WHAT)
]
Profile = Annotated[
    str | None, typer.Option(help="Set of options: full, short, cpu.", show_default="full", rich_help_panel=WHAT)
]
Augment = Annotated[str | None, typer.Option(help="See 'drcil list augmentations'.", rich_help_panel=WHAT)]
Validation = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of training images to hold out.", rich_help_panel=WHAT)
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=WHERE)]
Precision = Annotated[str | None, typer.Option(help="32, 16-mixed, bf16-mixed.", rich_help_panel=WHERE)]
Threads = Annotated[int | None, typer.Option(help="CPU cores that a run may use.", rich_help_panel=WHERE)]
Workers = Annotated[int | None, typer.Option(help="Processes that decode images.", rich_help_panel=WHERE)]
Cache = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory for decoded images: 2GB.", rich_help_panel=WHERE)
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Train with compiled nets, which are slow to start.", rich_help_panel=WHERE)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, all else to stderr.", rich_help_panel=SHOWN)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the result, no progress.", rich_help_panel=SHOWN)]

ENGINE = ("device", "precision", "threads", "workers", "cache", "eval_every")
"""The options that are settings of the engine, of the same name."""


def chosen_settings(*, data: Path | None, compile: bool, **given: Any) -> RunSettings:
    """The settings of a run from the options of a verb, by name; None: not given."""
    from ..runs.settings import make_settings

    engine = {name: given.pop(name, None) for name in ENGINE} | {"compile": compile or None}
    return make_settings(
        **given,
        data=str(data.expanduser().absolute()) if data else None,
        engine={name: value for name, value in engine.items() if value is not None},
    )
