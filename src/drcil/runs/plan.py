"""What a run is going to do, known before anything is written: whether it can begin, and how much work it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..arguments import optional, whole
from ..data.datasets.dataset import Dataset
from ..data.sources.imageset import ImageShape
from ..errors import UserError
from ..learner import Learner
from ..limits import THREADS
from ..methods import METHODS
from ..methods.rehearsal import rehearse
from ..models.model import Model, ModelOptions, new_model
from ..streams.stream import Stream, make_stream
from ..train.loggers import known_loggers
from .room import require_room
from .settings import RunSettings


class Plan(NamedTuple):
    """The stream that a run learns, and the work of every task."""

    stream: Stream
    work: list[list[int]]
    """Image-epochs (images times epochs) of the stages of each task; none where these could not be rehearsed."""


def plan_run(run: RunSettings, stream: Stream | None = None) -> Plan:
    """What the run will do; or the error that would end it once its directory exists. None: its stream is loaded."""
    if run.readout is not None:
        METHODS[run.method].require_readout(run.readout)
    optional(whole, "threads", run.threads, THREADS)
    stream = stream or load_stream(run)
    require_tasks(run, stream)
    known_loggers(run.loggers)
    model = fresh_model(run, stream)
    require_room(model, run.engine)
    # An engine needs a device and an augmentation that are there.
    Learner.of(model, run.engine).engine  # noqa: B018
    stages = rehearse(model.method, stream[: run.tasks], model.memory.budget)
    return Plan(stream, [[stage.epochs * stage.images for stage in task] for task in stages])


def require_tasks(run: RunSettings, stream: Stream) -> None:
    """A run cannot stop after more tasks than there are."""
    if run.tasks is not None and run.tasks > len(stream):
        raise UserError(f"stream '{stream.name}' has {_counted(len(stream))}, so a run cannot stop after {run.tasks}")


def require_part(run: RunSettings, stream: Stream) -> None:
    """A backbone must have the part that is to be frozen."""
    if run.freeze is not None:
        fresh_model(run, stream).method.fresh_backbone()


def _counted(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def load_stream(run: RunSettings, dataset: Dataset | None = None) -> Stream:
    """The run's stream, from its dataset or from the one given in its place."""
    return make_stream(
        run.stream,
        dataset,
        data_dir=Path(run.data) if run.data else None,
        image_size=run.image_size,
        order_seed=run.order_seed,
        memory=run.memory,
        validation=run.validation,
    )


def fresh_model(run: RunSettings, stream: Stream) -> Model:
    """The model that a run begins with: known method and backbone, valid settings, a memory that will do."""
    options = ModelOptions(
        run.method,
        run.backbone,
        run.memory,
        run.augment,
        run.seed,
        run.epochs_scale,
        run.schedule,
        run.settings,
        run.weights,
        run.freeze,
    )
    shape = ImageShape.of(stream.dataset.train.source)
    model = new_model(options, stream.dataset.spec, shape, stream.budget, run.stream)
    model.require_exemplars(sum(stream.sizes[: run.tasks]))
    return model
