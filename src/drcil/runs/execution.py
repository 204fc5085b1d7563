"""Creates, resumes and trains a run.

The directory is the only state of a run, and every file in it is written at once. To resume a run means: restore the
last finished task, and learn the next one again; the snapshots of the engine then skip what was done of it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from .. import distributed
from ..data.augment import AUGMENTS
from ..data.dataset import DATASETS
from ..data.fingerprint import DatasetFingerprint, describe_difference
from ..data.image_set import ImageSet
from ..errors import UserError
from ..files import (
    atomic_directory,
    checksum,
    make_directory,
    read_checksummed_json,
    read_toml,
    remove,
    require_directories,
    stale_temporary_files,
    write_bytes,
    write_checksummed_json,
    write_json,
)
from ..heads.head import HEADS
from ..learner import Learner
from ..methods import METHODS
from ..methods.catalog import entries_of
from ..metrics import METRICS
from ..models.model import Model
from ..models.model_directory import read_beside, read_model, write_model
from ..models.model_format import TASKS, read_state_json
from ..nets.backbone import BACKBONES
from ..registry import (
    PluginCode,
    acting_plugins,
    changed_plugin,
    named_plugins,
    needed_plugins,
    plugin_code,
    require_plugins,
)
from ..settings import CONFIG, FORMAT, RunSettings, describe_validation_error
from ..streams.protocols import parse_stream
from ..streams.stream import Stream
from ..train import Listener, SnapshotStore
from ..train.events import Event, TaskDone, silence
from ..train.loggers import EPOCHS as EPOCHS_TABLE
from ..train.loggers import LOGGERS, Logging
from ..train.loggers import TASKS as TASKS_TABLE
from .plan import RunPlan, plan_run, require_match
from .result import (
    PREDICTIONS,
    FinishedTask,
    RunResult,
    TaskRecord,
    TrainedTask,
    is_task,
    measure_run,
    read_task,
    read_tasks,
    task_directories,
)
from .run_files import LOCK, OWNER, environment, log_entry, log_event, package_versions, records_of, run_lock

BEGINNING, PLUGINS = "beginning.json", "plugins"


class InitialState(BaseModel):
    """What the result of a run depends on: its settings, those of the method with its recipe, images, plugins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    resolved: dict[str, Any]
    data: DatasetFingerprint
    plugins: dict[str, str] | None = None
    """Digests of the code of the plugins that the result depends on; None: a run without plugins."""

    @classmethod
    def of(cls, plan: RunPlan, settings: RunSettings) -> InitialState:
        """The present state, without plugins."""
        resolved = plan.model.method.settings.model_dump(mode="json")
        return cls(settings=settings.identity(), resolved=resolved, data=plan.data)

    def to_json(self) -> dict[str, Any]:
        """A run without plugins does not mention them."""
        return self.model_dump(mode="json", exclude={"plugins"} if self.plugins is None else None)


def write_initial_state(directory: Path, settings: RunSettings, plan: RunPlan, plugins: Sequence[str]) -> None:
    """``plugins``: those whose code the result depends on. Copies of their code are written, too."""
    state = InitialState.of(plan, settings)
    if settings.plugins:
        codes = {name: plugin_code(name) for name in plugins}
        state = state.model_copy(update={"plugins": {name: code.digest for name, code in codes.items()}})
        if codes:
            with atomic_directory(directory / PLUGINS) as temporary:
                _write_copies(temporary, codes)
    write_checksummed_json(directory / BEGINNING, state.to_json())


def _write_copies(directory: Path, codes: Mapping[str, PluginCode]) -> None:
    for number, code in enumerate(codes.values(), start=1):
        for path, content in code.files.items():
            write_bytes(directory / str(number) / path, content, root=directory)


def read_initial_state(directory: Path) -> InitialState:
    if not os.path.isfile(directory / BEGINNING):
        raise UserError(
            f"{directory} cannot be resumed without {BEGINNING}, which stores its initial state; restore it"
        )
    try:
        return InitialState.model_validate(read_checksummed_json(directory / BEGINNING))
    except ValidationError as error:
        raise UserError(
            f"{directory / BEGINNING} is not the initial state of a run: {describe_validation_error(error)}"
        ) from None


def check_unchanged(directory: Path, settings: RunSettings, plan: RunPlan) -> InitialState:
    """The initial state of a run, if nothing of it has changed."""
    before, now = read_initial_state(directory), InitialState.of(plan, settings)
    require_unchanged(directory, CONFIG, before.settings, now.settings)
    changed = _first_difference(with_new_settings(before.resolved, settings.method), now.resolved)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be resumed: '{changed}' in the recipe of '{settings.method}' has changed since "
            "the run began; start a new run, or restore the recipe"
        )
    changed = changed_plugin(before.plugins or {})
    if changed is not None:
        copy = directory / PLUGINS / str([*(before.plugins or {})].index(changed) + 1)
        raise UserError(
            f"{directory} cannot be resumed: the code of the plugin '{changed}' has changed since the run began; "
            f"start a new run, or restore the code, of which {copy} has a copy"
        )
    changed = describe_difference(before.data, now.data)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be resumed, since the images of '{plan.stream.name}' are not those that it began "
            f"with: {changed}; start a new run, or restore them"
        )
    return before


def require_unchanged(directory: Path, where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the settings of a run have not changed."""
    changed = _first_difference(before, now)
    if changed is not None:
        raise UserError(
            f"{directory} cannot be used: '{changed}' in {where} has changed since the run began; start a new "
            "run, or restore the file"
        )


def with_new_settings(resolved: dict[str, Any], method: str) -> dict[str, Any]:
    """Stored settings of a method, with the defaults of those that are newer; unchanged if they do not fit it."""
    try:
        return METHODS[method].build.Settings.model_validate(resolved).model_dump(mode="json")
    except (UserError, ValidationError):
        return resolved


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The name of the first entry that differs, in nested tables too; None if all are equal."""
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old != new:
            inside = isinstance(old, Mapping) and isinstance(new, Mapping) and _first_difference(old, new)
            return inside or name
    return None


RESULT, SNAPSHOT = "result.json", "snapshot"
ENVIRONMENT, PAGE, CURVE = "environment.json", "report.html", "curve.png"
FILES = frozenset({CONFIG, BEGINNING, PLUGINS, ENVIRONMENT, RESULT, PAGE, CURVE, OWNER, EPOCHS_TABLE, TASKS_TABLE})
"""The files of a run directory, each written at once."""
MEASURE = 2
"""How metrics are computed: a result that was measured in another way is measured again. 1 averaged rounded values."""
_SOURCE = "made_from"
"""The entry of ``result.json`` that says which tasks and settings the figures are of."""


class Run:
    """A run directory. ``create_run`` makes one, ``open`` reads one, ``train`` learns what is left to learn."""

    def __init__(self, directory: Path, settings: RunSettings) -> None:
        self.directory, self.settings = directory, settings
        self._result: RunResult | None = None

    @classmethod
    def open(cls, directory: Path) -> Run:
        """The run in a directory; the plugins that it needs must be there."""
        run = cls.read(directory)
        require_plugins(run.settings.plugins, directory)
        return run

    @classmethod
    def read(cls, directory: Path) -> Run:
        """The same without its plugins: enough to read its settings and its result."""
        path = directory / CONFIG
        if not os.path.isfile(path):
            why = f"it has no {CONFIG}" if os.path.exists(directory) else "there is no such directory"
            raise UserError(f"{directory} is not a run: {why}")
        values = read_toml(path)
        version = values.get("format")
        if version != FORMAT:
            raise UserError(f"{directory} has run format {version}; this version of drcil reads format {FORMAT}")
        return cls(directory, RunSettings.parse(values))

    def finished_tasks(self) -> list[Path]:
        """The directories of the finished tasks, in order; each is a model."""
        return task_directories(self.directory)

    def tasks(self) -> list[FinishedTask]:
        """The finished tasks; an error if they are not of this run, in order and of its settings."""
        tasks = read_tasks(self.directory)
        if tasks:
            require_unchanged(self.directory, CONFIG, tasks[-1].record.run, self.settings.identity())
        return tasks

    def train(
        self,
        plan: RunPlan | None = None,
        listener: Listener = silence,
        warn: Callable[[str], None] = warnings.warn,
    ) -> RunResult:
        """Learn all tasks that are not finished; returns the result. None: the run is planned now.

        Nothing is written to a finished run: its disk may be read-only. ``warn`` is called if a logger fails.
        """
        plan = plan or plan_run(self.settings)
        stored = distributed.broadcast_object(self._stored_result())
        if stored is not None and len(stored.tasks) >= len(plan.work):
            return stored
        if not distributed.is_main():
            # Wait until the main process has locked the directory.
            distributed.barrier()
            return self._train_tasks(plan, silence)
        logging = Logging(self.settings.loggers, self.directory, lambda: records_of(self.directory), warn)
        with self.lock(), closing(logging):
            distributed.barrier()

            def emit(event: Event) -> None:
                # Loggers first: they treat the events in the log as earlier ones.
                logging(event)
                log_event(self.directory, event)
                listener(event)

            return self._train_tasks(plan, emit)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory against other processes, and remove temporary files that killed ones left."""
        with run_lock(self.directory):
            require_directories(self.directory, TASKS, SNAPSHOT)
            for path in (
                *stale_temporary_files(self.directory, FILES.__contains__),
                *stale_temporary_files(self.directory / TASKS, is_task),
            ):
                remove(path, root=self.directory)
            yield

    def _train_tasks(self, plan: RunPlan, emit: Listener) -> RunResult:
        """All processes learn and measure; the main process logs and writes. Files of finished tasks are read once."""
        stream, is_main = plan.stream, distributed.is_main()
        initial = check_unchanged(self.directory, self.settings, plan)
        tasks = self.tasks()
        learner = self._learner(plan, tasks, initial, emit)
        # All processes have read the directory before any of them writes to it.
        distributed.barrier()
        predictions: list[dict[str, Tensor]] = []
        if is_main:
            if tasks:
                # Damage of earlier tasks is reported before another is learnt.
                predictions = _read_predictions(tasks)
                self._log_last_task(self._write_result(tasks, predictions))
            log_entry(self.directory, "Started", process=os.getpid(), work=plan.work)
        for number in range(len(tasks) + 1, len(plan.work) + 1):
            task, started = stream.task(number), time.monotonic()
            learner.learn(task)
            learning_seconds = time.monotonic() - started
            tensors = _predictions(learner, task.test)
            readouts = _figures_by_readout(learner, stream, number)
            if not is_main:
                continue
            record = TaskRecord(
                run=self.settings.identity(),
                data_digest=initial.data.digest(),
                previous=tasks[-1].checksum if tasks else None,
                stream_tasks=len(stream),
                versions=package_versions(),
                task=TrainedTask(
                    number=number,
                    classes=list(task.classes),
                    new_images=len(task.new),
                    class_images=task.new.counts(task.total)[task.old :].tolist(),
                    memory_images=len(learner.memory.rows),
                    readouts=readouts,
                    seconds=round(time.monotonic() - started, 3),
                    learning_seconds=round(learning_seconds, 3),
                ),
            )
            tasks.append(self._write_task(learner, record, tensors))
            predictions.append(tensors)
            emit(_task_done(self._write_result(tasks, predictions)))
        result = distributed.broadcast_object(self._result)
        assert result is not None
        return result

    def _log_last_task(self, result: RunResult) -> None:
        """Add a task to the event log whose process was killed after it was finished and before it was logged."""
        event = _task_done(result)
        logged = (record.task for record in records_of(self.directory) if isinstance(record, TaskDone))
        if event.task not in logged:
            log_event(self.directory, event)

    def _learner(self, plan: RunPlan, tasks: Sequence[FinishedTask], initial: InitialState, emit: Listener) -> Learner:
        """The learner after the last finished task."""
        directory = self.directory / SNAPSHOT if distributed.is_main() else None
        engine = self.settings.engine
        journal = SnapshotStore(directory, engine.snapshot_seconds, initial.to_json(), root=self.directory)
        if tasks:
            model = read_model(tasks[-1].directory, at_hand=plan.stream.dataset.train.source)
            require_match(model, plan.stream, self.settings.order_seed)
        else:
            model = plan.model
        return Learner.from_model(model, engine, emit, journal)

    def _write_task(self, learner: Learner, record: TaskRecord, predictions: dict[str, Tensor]) -> FinishedTask:
        """Write model, predictions and record of a task; its directory appears at once."""
        directory = self.directory / TASKS / f"{record.task.number:02d}"

        with atomic_directory(directory, root=self.directory) as temporary:
            write_model(
                learner.model,
                temporary,
                task_record=record.model_dump(mode="json"),
                tensors={PREDICTIONS: predictions},
            )
        learner.engine.snapshots.clear()
        return read_task(directory)

    def _write_result(self, tasks: Sequence[FinishedTask], predictions: Sequence[dict[str, Tensor]]) -> RunResult:
        """Measure the finished tasks and write ``result.json``."""
        self._result = measure_run(self.settings, tasks, predictions)
        values = {**self._result.to_json(), _SOURCE: self._result_source(tasks[-1].checksum)}
        write_checksummed_json(self.directory / RESULT, values)
        return self._result

    @property
    def has_result(self) -> bool:
        """Whether a task is finished."""
        return bool(self.finished_tasks())

    @property
    def is_finished(self) -> bool:
        """Whether all tasks are finished and can be read."""
        with suppress(UserError):
            return self.result().complete
        return False

    def result(self) -> RunResult:
        """The figures after the last finished task, read once: from ``result.json``, or measured if that is stale."""
        if self._result is None:
            if not self.has_result:
                raise UserError(f"{self.directory} has no result yet: its first task is not finished")
            self._result = self._stored_result()
        if self._result is None:
            tasks = self.tasks()
            self._result = measure_run(self.settings, tasks, _read_predictions(tasks))
        return self._result

    def _stored_result(self) -> RunResult | None:
        """The content of ``result.json``, if it is of the finished tasks and has all metrics."""
        finished = self.finished_tasks()
        if finished:
            with suppress(UserError, ValidationError):
                values = read_checksummed_json(self.directory / RESULT)
                if values.get(_SOURCE) == self._result_source(checksum(read_state_json(finished[-1]))):
                    result = RunResult.model_validate(values)
                    if all(METRICS.keys() <= figures.keys() for figures in result.readouts.values()):
                        return result
        return None

    def _result_source(self, last_task: str) -> str:
        """What a result depends on: the finished tasks, each of which names the one before, and some settings."""
        settings = self.settings
        return checksum([MEASURE, last_task, settings.identity(), settings.tasks, settings.readout])


def _read_predictions(tasks: Sequence[FinishedTask]) -> list[dict[str, Tensor]]:
    return [read_beside(task.directory, task.model, PREDICTIONS) for task in tasks]


def _predictions(learner: Learner, images: ImageSet) -> dict[str, Tensor]:
    """The labels of test images, and the best classes of each image by every readout."""
    tensors = {"labels": torch.from_numpy(images.labels)}
    for name, ranking in learner.rank(images).items():
        tensors |= {f"{name}.classes": ranking.classes, f"{name}.scores": ranking.scores}
    return tensors


def _task_done(result: RunResult) -> TaskDone:
    """The event that the last task of a result is done."""
    return TaskDone(
        task=len(result.tasks),
        classes=len(result.classes),
        seconds=result.per_task[-1].seconds,
        figures=result.latest_figures(),
    )


def _figures_by_readout(learner: Learner, stream: Stream, number: int) -> dict[str, dict[str, float | None]]:
    """Figures of each readout besides predictions: the size of its net, and its accuracy on held-out images."""
    figures: dict[str, dict[str, float | None]] = {
        name: {"parameters": learner.method.parameters(name)} for name in learner.readouts()
    }
    if stream.held_out():
        images = stream.held_out(number)
        for name, values in figures.items():
            values["validation"] = round(learner.evaluate(images, readout=name), 2) if images else None
    return figures


RUNS = Path("runs")
"""The directory of runs without ``--out``."""


def create_run(
    settings: RunSettings,
    directory: Path | None = None,
    plan: RunPlan | None = None,
    warn: Callable[[str], None] = warnings.warn,
    idle: Literal["refuse", "warn"] = "refuse",
) -> Run:
    """A new run; nothing that is already there is touched.

    Planning finds what would end the run once its directory exists; ``plan``: it is planned already. ``idle``: what
    happens if a setting has no effect; in an experiment, where a setting is given to all methods, it is a warning.
    """
    plan = plan or plan_run(settings)
    for sentence in plan.idle_settings():
        if idle == "refuse":
            raise UserError(f"{sentence}; leave it out")
        warn(sentence)
    for caution in plan.model.method.warnings():
        warn(caution)
    required = _required_plugins(settings, plan.model)
    plugins = dict.fromkeys([*named_plugins(), *required, *_logger_plugins(settings)])
    settings = settings.model_copy(update={"plugins": tuple(plugins)})
    run = Run(unused(RUNS / settings.name) if directory is None else directory, settings)
    _require_unused(run.directory)
    make_directory(run.directory)
    with run.lock():
        # Again: another process may have created a run since.
        _require_unused(run.directory)
        threads = settings.threads or torch.get_num_threads()
        write_json(run.directory / ENVIRONMENT, {**environment(), "threads": threads})
        write_initial_state(run.directory, settings, plan, acting_plugins(required))
        # Last: with it the directory is a run.
        config = settings.model_dump(mode="json", exclude_none=True)
        write_bytes(run.directory / CONFIG, tomli_w.dumps(config).encode())
    return run


def _require_unused(directory: Path) -> None:
    if os.path.lexists(directory / CONFIG):
        raise UserError(f"{directory} already contains a run; continue it with 'drcil resume {directory}'")
    if directory.exists() and (not directory.is_dir() or set(directory.iterdir()) - _unfinished_files(directory)):
        raise UserError(f"{directory} exists and is not an empty directory; choose another --out")


def _unfinished_files(directory: Path) -> set[Path]:
    """Files that a killed ``create_run`` may have left; without its lock there are none."""
    if not os.path.lexists(directory / LOCK):
        return set()
    written = (directory / name for name in (LOCK, OWNER, ENVIRONMENT, BEGINNING, PLUGINS))
    return {*stale_temporary_files(directory, FILES.__contains__), *written}


def _required_plugins(settings: RunSettings, model: Model) -> tuple[str, ...]:
    """The plugins that the result depends on, as far as names tell."""
    return needed_plugins(
        *entries_of(settings.method),
        (DATASETS, parse_stream(settings.stream).dataset.partition(":")[0]),
        (AUGMENTS, model.augmentation),
        (BACKBONES, model.method.architecture.backbone),
        (HEADS, getattr(model.method.settings, "head", model.method.head)),
    )


def _logger_plugins(settings: RunSettings) -> tuple[str, ...]:
    """Loggers change no result, but the run needs them."""
    return needed_plugins(*((LOGGERS, name) for name in settings.loggers))


def unused(path: Path, taken: Collection[Path] = ()) -> Path:
    """The path, or with the first number behind it that is not taken."""
    candidate, number = path, 2
    while os.path.lexists(candidate) or candidate in taken:
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
