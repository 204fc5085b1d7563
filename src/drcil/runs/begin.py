"""The one way to begin a run: a directory with its settings. Resuming it carries it out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from ..data.augment import AUGMENTS
from ..data.datasets.dataset import DATASETS
from ..disk import leftovers, make_directory, write_json
from ..errors import UserError
from ..heads.base import HEADS
from ..methods.spec import entries_of
from ..nets.features import BACKBONES
from ..plugins import named_plugins, needed_plugins
from ..streams.protocols import parse_stream
from ..streams.stream import Stream
from ..train.loggers import LOGGERS
from .beginning import BEGINNING, write_beginning
from .environment import environment
from .owner import LOCK, OWNER
from .plan import Plan, fresh_model, plan_run
from .run import Run
from .settings import CONFIG, RunSettings, write_settings

RUNS = Path("runs")
"""Where runs are made unless another place is named."""
ENVIRONMENT = "environment.json"


def begin_run(
    settings: RunSettings,
    directory: Path | None = None,
    plan: Plan | None = None,
    told: Callable[[str], None] = warnings.warn,
) -> Run:
    """A new run; nothing that is already there is touched.

    Whatever would end the run once its directory exists is found out first, by planning it; ``plan``: it was planned.
    ``told`` hears what a user should know of it before it begins.
    """
    stream = (plan or plan_run(settings)).stream
    for caution in fresh_model(settings, stream).method.cautions():
        told(caution)
    plugins = dict.fromkeys([*named_plugins(), *plugins_of(settings, stream)])
    settings = settings.model_copy(update={"plugins": tuple(plugins)})
    run = Run(unused(RUNS / settings.name) if directory is None else directory, settings)
    _require_room(run.directory)
    make_directory(run.directory)
    with run.alone():
        # Again: what another process has begun here since is begun.
        _require_room(run.directory)
        threads = settings.threads or torch.get_num_threads()
        write_json(run.directory / ENVIRONMENT, {**environment(), "threads": threads})
        write_beginning(run.directory, settings, stream)
        # Last: with it the directory is a run.
        write_settings(settings, run.directory / CONFIG)
    return run


def _require_room(directory: Path) -> None:
    if os.path.lexists(directory / CONFIG):
        raise UserError(f"{directory} already contains a run; continue it with 'drcil resume {directory}'")
    if directory.exists() and (not directory.is_dir() or set(directory.iterdir()) - _begun(directory)):
        raise UserError(f"{directory} exists and is not an empty directory; choose another --out")


def _begun(directory: Path) -> set[Path]:
    """What a beginning that was killed may have left in a directory."""
    return {*leftovers(directory), *(directory / name for name in (LOCK, OWNER, ENVIRONMENT, BEGINNING))}


def plugins_of(own: RunSettings, stream: Stream) -> tuple[str, ...]:
    """The plugins that a run cannot do without, as far as names tell."""
    model = fresh_model(own, stream)
    return needed_plugins(
        *entries_of(own.method),
        (DATASETS, parse_stream(own.stream).dataset.partition(":")[0]),
        (AUGMENTS, model.augmentation),
        (BACKBONES, model.method.architecture.backbone),
        (HEADS, getattr(model.method.settings, "head", model.method.head)),
        *((LOGGERS, name) for name in own.loggers),
    )


def unused(path: Path, taken: Collection[Path] = ()) -> Path:
    """The path, or with the first number behind it that is not taken."""
    candidate, number = path, 2
    while candidate.exists() or candidate in taken:
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
