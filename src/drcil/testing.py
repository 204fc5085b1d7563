"""Laws that hold for every method.

>>> from drcil.testing import check_method
>>> check_method("replay", laws=["memory"])  # raises BrokenLaw if one does not hold
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from .errors import UserError, unknown_name
from .files import read_tensors
from .learner import Learner, load_learner
from .methods import METHODS
from .methods.catalog import setting_keys
from .nets.backbone import frozen_backbones, frozen_modules, frozen_parameters
from .nets.net import Output
from .runs.execution import RESULT, Run, create_run
from .runs.plan import complete, fresh_model, load_stream, plan_run
from .runs.result import PREDICTIONS
from .settings import MemoryBudget, RunSettings
from .stages import Batch, Losses, Stage
from .streams.memory import first_of_each_class
from .streams.stream import make_stream
from .train import TrainingEngine
from .train.events import EpochDone, Event, StageDone, StepDone, TaskDone

TASKS = 3


class Stop(Exception):
    """Stops a run at a stop point."""


@dataclass(frozen=True)
class StopPoint:
    """The ``count``-th event of a kind after so many finished stages of a task."""

    kind: type[StepDone] | type[EpochDone] | type[StageDone] | type[TaskDone]
    task: int
    stages: int
    count: int = 1


@dataclass
class Watch:
    """Counts the steps of a run and stops it at a stop point."""

    steps: int = 0
    stage_steps: dict[int, list[int]] = field(default_factory=dict)
    """The steps of every finished stage, by task."""
    stop_at: StopPoint | None = None
    _stages: int = 0
    _stage_steps: int = 0
    _events: int = 0

    def begin(self, stop_at: StopPoint | None) -> None:
        """Start counting for a resumed run, which reports the finished stages of its task again."""
        self.stop_at, self._stages, self._stage_steps, self._events = stop_at, 0, 0, 0

    def __call__(self, event: Event) -> None:
        stop = self.stop_at
        if stop and isinstance(event, stop.kind) and (event.task, self._stages) == (stop.task, stop.stages):
            self._events += 1
        if isinstance(event, StepDone):
            self.steps += 1
            self._stage_steps += 1
        elif isinstance(event, StageDone):
            self.stage_steps.setdefault(event.task, []).append(self._stage_steps)
            self._stages, self._stage_steps = self._stages + 1, 0
        elif isinstance(event, TaskDone):
            self.stage_steps.setdefault(event.task, [])
            self._stages = 0
        if stop and self._events == stop.count:
            raise Stop

    def stop_points(self) -> Iterator[StopPoint]:
        """In every stage, at the end of one of its epochs, after the stage, and after every task, in this order."""
        for task, stages in self.stage_steps.items():
            for position, steps in enumerate(stages):
                if steps:
                    # Later than the first step where possible, so that there is a snapshot to resume from.
                    yield StopPoint(StepDone, task, position, steps // 2 + 1)
                    yield StopPoint(EpochDone, task, position)
                yield StopPoint(StageDone, task, position)
            yield StopPoint(TaskDone, task, len(stages))


class Trial:
    """Runs of one method, executed when a law first needs them."""

    def __init__(self, method: str, directory: Path, **options: Any) -> None:
        """``options``: settings of the run, such as ``backbone`` or ``stream``."""
        self.method, self.directory = method, directory
        defaults = {"stream": "digits-b0-5", "tasks": TASKS, "epochs_scale": 0.03, "memory": self.budget}
        self._options = {**defaults, **options, "method": method}
        self.changed: list[str] = []
        """One sentence for every change that a stage must not make."""
        self.uninterrupted_watch, self.interrupted_watch = Watch(), Watch()
        self.stops: list[StopPoint] = []
        """The points at which ``interrupted_run`` was stopped."""

    @property
    def budget(self) -> str | None:
        """The memory budget; None if the method requires its own."""
        return None if METHODS[self.method].build.memory else "20"

    @cached_property
    def uninterrupted_run(self) -> Run:
        """An uninterrupted run in which every stage is watched."""
        run = self._create_run("uninterrupted", snapshot_seconds=1000)
        fit = TrainingEngine.fit
        with mock.patch.object(TrainingEngine, "fit", lambda engine, stage: self._watch(engine, stage, fit)):
            run.train(listener=self.uninterrupted_watch)
        return run

    @cached_property
    def interrupted_run(self) -> Run:
        """A run that is stopped in and after every stage and after every task, and resumed each time."""
        self.uninterrupted_run  # noqa: B018 - it determines the stop points
        run = self._create_run("interrupted", snapshot_seconds=0)
        # Planned once: planning takes longer than the few steps between two stops.
        plan = plan_run(run.settings)
        for stop in (*self.uninterrupted_watch.stop_points(), None):
            self.interrupted_watch.begin(stop)
            try:
                Run.open(run.directory).train(plan, listener=self.interrupted_watch)
            except Stop:
                assert stop is not None
                self.stops.append(stop)
        return Run.open(run.directory)

    def _create_run(self, name: str, **engine: Any) -> Run:
        """Create a run with small batches, so that every stage has a few steps."""
        settings = complete(RunSettings.parse({**self._options, "engine": {"device": "cpu", **engine}}))
        stream = load_stream(settings)
        idle = fresh_model(settings, stream).method.idle_settings(stream.large_base)
        keys = (key.split(".") for key in setting_keys(METHODS[self.method].build.Settings))
        sizes = {f"{stage}.batch_size": 64 for stage, *rest in keys if rest == ["batch_size"] and stage not in idle}
        settings = settings.model_copy(update={"settings": {**sizes, **settings.settings}})
        return create_run(settings, self.directory / name)

    def _watch(self, engine: TrainingEngine, stage: Stage, fit: Callable[[TrainingEngine, Stage], None]) -> None:
        """Fit a stage and record changes of what it does not train."""
        names = {id(tensor): name for name, tensor in tensors_of(stage.net).items()}
        if stage.groups is None:
            trained = {id(parameter) for parameter in stage.net.parameters() if parameter.requires_grad}
        else:
            trained = {id(parameter) for group in stage.groups for parameter in group.parameters}
        untrained = [tensor for part in stage.frozen for tensor in part.buffers()]
        untrained += [parameter for parameter in stage.net.parameters() if id(parameter) not in trained]
        for backbone in frozen_backbones(stage.net):
            untrained += frozen_parameters(backbone)
            untrained += [buffer for part in frozen_modules(backbone) for buffer in part.buffers()]
        untrained += [tensor for teacher in stage.teachers.values() for tensor in tensors_of(teacher).values()]
        before = [tensor.detach().clone() for tensor in untrained]

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            frozen = [part for backbone in frozen_backbones(stage.net) for part in frozen_modules(backbone)]
            if any(module.training for part in (*stage.frozen, *frozen) for module in part.modules()):
                self.changed.append(f"stage '{stage.name}' left a frozen module in training mode")
            return stage.objective(output, teachers, batch)

        fit(engine, replace(stage, objective=objective))
        if not trained <= names.keys():
            self.changed.append(f"stage '{stage.name}' trains parameters that do not belong to its net")
        for tensor, previous in zip(untrained, before, strict=True):
            if not torch.equal(tensor, previous):
                self.changed.append(f"stage '{stage.name}' changed {names.get(id(tensor), 'a teacher')}")


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class BrokenLaw(AssertionError):
    """A method breaks a law."""


Law = Callable[[Trial], None]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    LAWS[check.__name__.replace("_", " ")] = check
    return check


def check_method(
    method: str,
    laws: Iterable[str] | None = None,
    *,
    directory: Path | None = None,
    report: Callable[[str, BrokenLaw | None], None] | None = None,
    **options: Any,
) -> None:
    """Check laws (None: all) on a registered method. Raises the first ``BrokenLaw`` after all have been checked.

    ``report`` is called with every law and its failure. ``options`` are settings of the run: ``stream``, ``backbone``,
    ``epochs_scale``, ``settings`` and so on. Runs are written to ``directory`` (None: a temporary one).
    """
    names = list(LAWS if laws is None else laws)
    for name in names:
        if name not in LAWS:
            raise unknown_name("law", name, LAWS)
    broken: list[BrokenLaw] = []
    with TemporaryDirectory() if directory is None else nullcontext(directory) as parent:
        trial = Trial(method, Path(parent), **options)
        for name in names:
            failure: BrokenLaw | None = None
            try:
                LAWS[name](trial)
            except (UserError, BrokenLaw) as error:
                failure = BrokenLaw(str(error))
            except Exception as error:
                failure = BrokenLaw(f"{type(error).__name__}: {error}")
                failure.__cause__ = error
            if failure is not None:
                broken.append(failure)
            if report is not None:
                report(name, failure)
    if broken:
        raise broken[0]


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenLaw(sentence)


@law
def frozen_parts(trial: Trial) -> None:
    """A stage changes no bit of frozen modules, teachers and parameters in no group."""
    trial.uninterrupted_run  # noqa: B018 - the stages are watched while it runs
    require(not trial.changed, ", ".join(dict.fromkeys(trial.changed)))


@law
def memory(trial: Trial) -> None:
    """After every task the memory has as many images of every class as the budget allows, with the right labels."""
    run = trial.uninterrupted_run
    budget = MemoryBudget.parse(METHODS[trial.method].build.memory or str(trial.budget))
    label_of: dict[int, int] = {}
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        label_of |= dict(zip(task.new.rows.tolist(), task.new.labels.tolist(), strict=True))
        available, quota = np.bincount(list(label_of.values())), budget.quota(task.total)
        expected = available if quota is None else np.minimum(available, quota)
        exemplars = load_learner(directory, device="cpu").memory
        counts = np.bincount(exemplars.labels, minlength=task.total).tolist()
        sentence = f"after task {task.number} the memory has {counts} images of the classes, not {expected.tolist()}"
        require(counts == expected.tolist(), sentence)
        labels = [label_of.get(row) for row in exemplars.rows.tolist()]
        require(labels == exemplars.labels.tolist(), f"after task {task.number} exemplars have wrong labels")


@law
def predictions(trial: Trial) -> None:
    """Every readout ranks the classes so far, and no others, by finite scores, best first."""
    run = trial.uninterrupted_run
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        tensors, _ = read_tensors(directory / PREDICTIONS)
        ranked = torch.arange(task.total)[:10]
        for name in run.result().readouts:
            classes, scores = tensors[f"{name}.classes"], tensors[f"{name}.scores"]
            where = f"after task {task.number} readout '{name}'"
            require(classes.shape == (len(task.test), len(ranked)), f"{where} ranks {classes.shape[1]} classes")
            within = bool(((classes >= 0) & (classes < task.total)).all())
            require(within, f"{where} names classes that do not exist yet")
            distinct = all(len(set(row)) == len(row) for row in classes.tolist())
            require(distinct, f"{where} names a class twice")
            require(bool(torch.isfinite(scores).all()), f"{where} has scores that are not finite")
            require(bool((scores.diff(dim=1) <= 0).all()), f"{where} does not rank by score")


@law
def readouts(trial: Trial) -> None:
    """``readouts`` has the names of ``readout_names``, in this order, so that one can be selected before training."""
    actual, declared = tuple(trial.uninterrupted_run.result().readouts), METHODS[trial.method].build.readout_names
    sentence = f"the readouts are {', '.join(actual)}, but readout_names says {', '.join(declared)}"
    require(actual == declared, sentence)


@law
def saving(trial: Trial) -> None:
    """A loaded model gives the same predictions as when it was saved, bit for bit."""
    run = trial.uninterrupted_run
    for task, directory in zip(load_stream(run.settings), run.finished_tasks(), strict=False):
        tensors, _ = read_tensors(directory / PREDICTIONS)
        for name, ranking in load_learner(directory, device="cpu").rank(task.test).items():
            same = torch.equal(ranking.classes, tensors[f"{name}.classes"])
            same = same and torch.equal(ranking.scores, tensors[f"{name}.scores"])
            require(same, f"after task {task.number} readout '{name}' of the loaded model answers differently")


@law
def resuming(trial: Trial) -> None:
    """A run that is stopped in and after every stage ends bit for bit like an uninterrupted one.

    It repeats at most the step at which it was stopped.
    """
    uninterrupted, interrupted = tensors_and_result(trial.uninterrupted_run), tensors_and_result(trial.interrupted_run)
    for point in trial.uninterrupted_watch.stop_points():
        sentence = f"the resumed run has other stages in task {point.task} than the uninterrupted one"
        require(point in trial.stops, sentence)
    require(uninterrupted.keys() == interrupted.keys(), "the resumed run wrote other files than the uninterrupted one")
    for file in uninterrupted.keys() - {RESULT}:
        require(uninterrupted[file].keys() == interrupted[file].keys(), f"{file} has other tensors after resuming")
        for name, tensor in uninterrupted[file].items():
            require(torch.equal(tensor, interrupted[file][name]), f"'{name}' in {file} differs after resuming")
    require(uninterrupted[RESULT] == interrupted[RESULT], f"{RESULT} differs after resuming")
    expected = trial.uninterrupted_watch.steps + sum(stop.kind is StepDone for stop in trial.stops)
    steps = trial.interrupted_watch.steps
    require(steps <= expected, f"the resumed run took {steps} steps instead of {expected}: finished work was repeated")


@law
def small_tasks(trial: Trial) -> None:
    """Tasks of one class, and small tasks after a large one, can be learnt."""
    for name in ("digits-b0-10", "digits-6/2"):
        memory = None if trial.budget is None else "3/class"
        learner = Learner(trial.method, epochs_scale=0.01, memory=memory, device="cpu")
        for task in make_stream(name)[:3]:
            learner.learn(replace(task, new=first_of_each_class(task.new, 8)))
            for readout, ranking in learner.rank(task.test).items():
                finite = bool(torch.isfinite(ranking.scores).all())
                require(
                    finite, f"after task {task.number} of {name} readout '{readout}' has scores that are not finite"
                )


def tensors_and_result(run: Run) -> dict[str, Any]:
    """All tensors of a run by file, and its result without times and versions."""
    result = run.result().to_json()
    for entry in (result, *result["per_task"]):
        for clock in ("seconds", "learning_seconds", "versions"):
            entry.pop(clock, None)
    files = sorted(file for task in run.finished_tasks() for file in task.glob("*.safetensors"))
    return {RESULT: result, **{str(file.relative_to(run.directory)): read_tensors(file)[0] for file in files}}


__all__ = ["LAWS", "BrokenLaw", "check_method"]
