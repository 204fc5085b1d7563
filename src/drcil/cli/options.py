"""The options that several verbs have in common, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..limits import (
    ACCUMULATE,
    EPOCHS_SCALE,
    IMAGE_SIZE,
    JOBS,
    ORDER_SEED,
    RUN_CPUS,
    RUN_GPUS,
    SEEDS,
    TASKS,
    THREADS,
    TIMEOUT,
    VALIDATION,
    WORKERS,
)
from ..plugins import use_plugins
from .checks import a_budget, a_number_of_devices, known_device, known_precision, usable, within

WHAT, WHERE, SHOWN = "Experiment", "Compute", "Output"
"""The groups that help lists options in."""

Stream = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="DATASET-b0-TASKS, DATASET-b50-STEPS, DATASET-BASE/STEP; long-tailed: DATASET-lt-shuffled-b50-STEPS.",
    ),
]
OrderSeed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the class order.", show_default="1993", rich_help_panel=WHAT, callback=within(ORDER_SEED)
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(help="Runs of each: seeds 0, 1, …", show_default="1", rich_help_panel=WHAT, callback=within(SEEDS)),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Old images to keep: 2000 (in total), 20/class, all, none.", rich_help_panel=WHAT, callback=a_budget
    ),
]
Backbone = Annotated[
    str | None, typer.Option(help="See 'drcil list backbones'; timm:NAME for one of timm.", rich_help_panel=WHAT)
]
WeightsFile = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Weights that the backbone starts from: .safetensors, .pth, or a model.",
        rich_help_panel=WHAT,
        callback=usable,
    ),
]
Pretrained = Annotated[
    bool,
    typer.Option("--pretrained", help="Start from the weights that timm publishes.", rich_help_panel=WHAT),
]
Freeze = Annotated[
    str | None,
    typer.Option(
        metavar="PART", help="Freeze the backbone, or its parts up to this one: stages.1.", rich_help_panel=WHAT
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        envvar="DRCIL_DATA",
        help="Where datasets are.",
        show_default="./data",
        rich_help_panel=WHAT,
        callback=usable,
    ),
]
DataPlace = Annotated[
    Path | None,
    typer.Option(envvar="DRCIL_DATA", help="Where datasets are.", show_default="./data", callback=usable),
]
"""The same for verbs whose help has no groups."""
Tasks = Annotated[
    int | None, typer.Option(help="Stop after this many tasks.", rich_help_panel=WHAT, callback=within(TASKS))
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Image size, if not the dataset's own.",
        rich_help_panel=WHAT,
        callback=within(IMAGE_SIZE),
    ),
]
EpochsScale = Annotated[
    float | None,
    typer.Option(
        help="Factor for all epochs.", show_default="1.0", rich_help_panel=WHAT, callback=within(EPOCHS_SCALE)
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(help="Learning rates and batches: recipe, fast.", show_default="recipe", rich_help_panel=WHAT),
]
Profile = Annotated[
    str | None, typer.Option(help="Set of options: full, short, fast, cpu.", show_default="full", rich_help_panel=WHAT)
]
Augment = Annotated[str | None, typer.Option(help="See 'drcil list augmentations'.", rich_help_panel=WHAT)]
Validation = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of the training images to hold out.",
        rich_help_panel=WHAT,
        callback=within(VALIDATION),
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=WHERE, callback=known_device)]
Precision = Annotated[
    str | None, typer.Option(help="32, 16-mixed, bf16-mixed.", rich_help_panel=WHERE, callback=known_precision)
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads of a run.", rich_help_panel=WHERE, callback=within(THREADS))
]
Workers = Annotated[
    int | None,
    typer.Option(help="Worker processes that decode images.", rich_help_panel=WHERE, callback=within(WORKERS)),
]
Cache = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory for decoded images: 2GB.", rich_help_panel=WHERE)
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile nets with torch.compile; slow to start.", rich_help_panel=WHERE)
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at a time.",
        show_default="1; with ray as many as the cluster can hold",
        rich_help_panel=WHERE,
        callback=within(JOBS),
    ),
]
Engine = Annotated[
    str, typer.Option(help="Who carries out the runs: local (this machine), ray (a cluster).", rich_help_panel=WHERE)
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="The Ray cluster.",
        show_default="RAY_ADDRESS; else Ray is started here",
        rich_help_panel=WHERE,
    ),
]
CpusPerRun = Annotated[
    float | None,
    typer.Option(
        help="CPUs set aside for each run, with ray.",
        show_default="1",
        rich_help_panel=WHERE,
        callback=within(RUN_CPUS),
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        help="GPUs set aside for each run, with ray; 0.5: two runs share one.",
        show_default="1 where there are GPUs",
        rich_help_panel=WHERE,
        callback=within(RUN_GPUS),
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Processes that share a run, each with a GPU (or cores) of its own: 2, or auto for all GPUs.",
        show_default="1",
        rich_help_panel=WHERE,
        callback=a_number_of_devices,
    ),
]
Accumulate = Annotated[
    int | None,
    typer.Option(
        metavar="PARTS",
        help="Learn a batch that does not fit in so many parts.",
        rich_help_panel=WHERE,
        callback=within(ACCUMULATE),
    ),
]
SyncBatchnorm = Annotated[
    bool | None,
    typer.Option(
        "--sync-batchnorm/--no-sync-batchnorm",
        help="Batch statistics over all processes.",
        show_default="where a process has less than 64 images",
        rich_help_panel=WHERE,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long to wait for another process.",
        show_default="600",
        rich_help_panel=WHERE,
        callback=within(TIMEOUT),
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.", rich_help_panel=SHOWN)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result.", rich_help_panel=SHOWN)]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Metric to lead with; see 'drcil list metrics'.",
        show_default="avg; task_avg on long-tailed streams",
        rich_help_panel=SHOWN,
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LOGGER", help="csv, tensorboard, wandb; see 'drcil list loggers'; repeatable.", rich_help_panel=SHOWN
    ),
]


def out(what: str, usual: str) -> Any:
    """``--out`` of a verb that makes directories: what goes there, and where it is otherwise."""
    return typer.Option(help=what, show_default=usual, rich_help_panel=SHOWN, callback=usable)


def _use(names: list[str] | None) -> None:
    use_plugins(*names or ())


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE|FILE.py", help="Module or file that registers methods, datasets, …; repeatable.", callback=_use
    ),
]
"""Has its effect while the command line is read, whichever the verb."""
